// The extension module ps_shm._core: what the package's classes in Python are made of.
#include <nanobind/nanobind.h>

#include "errors.hpp"
#include "server.hpp"
#include "worker.hpp"

NB_MODULE(_core, module) {
  module.doc() = "The compiled part of ps_shm, for the package alone.";
  module.attr("__version__") = PS_VERSION;
  ps::python::add_errors(module);
  ps::python::add_variable(module);
  ps::python::add_bundle(module);
  ps::python::add_worker(module);
  ps::python::add_gpu(module);
  ps::python::add_server(module);
  ps::python::add_publication(module);
  ps::python::add_view(module);
  ps::python::add_checkpoint(module);
}
