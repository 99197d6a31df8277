// The extension module ps_shm._core: the compiled part of the package ps_shm.
#include <nanobind/nanobind.h>

#include "calls.hpp"
#include "errors.hpp"
#include "ps_shm/version.hpp"
#include "server.hpp"
#include "worker.hpp"

NB_MODULE(_core, module) {
  module.doc() = "The compiled part of the package ps_shm. Programs import ps_shm, not this module.";
  module.attr("__version__") = PS_SHM_VERSION;
  module.def("end_waits", &ps_shm::python::end_waits,
             "Ends the waits of all other threads, in which SystemExit is raised. For the end of the process.");
  ps_shm::python::add_errors(module);
  ps_shm::python::add_variable(module);
  ps_shm::python::add_table(module);
  ps_shm::python::add_bundle(module);
  ps_shm::python::add_worker(module);
  ps_shm::python::add_guest(module);
  ps_shm::python::add_gpu(module);
  ps_shm::python::add_server(module);
  ps_shm::python::add_publishers(module);
  ps_shm::python::add_subscribers(module);
  ps_shm::python::add_folder(module);
  ps_shm::python::add_view(module);
  ps_shm::python::add_checkpoint(module);
  ps_shm::python::add_bridge(module);
}
