#include "errors.hpp"

#include <nanobind/stl/string.h>

#include <string>

#include "ps/errors.hpp"

namespace ps::python {
namespace nb = nanobind;
namespace {

struct Classes {
  PyObject *error, *finished, *timeout, *gone;  // kept for as long as the process lives
};
Classes classes;

PyObject* make(nb::module_& module, const char* name, const char* documentation, nb::handle bases) {
  const std::string full = nb::cast<std::string>(module.attr("__name__")) + "." + name;
  PyObject* made = PyErr_NewExceptionWithDoc(full.c_str(), documentation, bases.ptr(), nullptr);
  if (made == nullptr) throw nb::python_error();
  module.attr(name) = nb::handle(made);
  return made;
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const JobFinished& error) {
    PyErr_SetString(classes.finished, error.what());
  } catch (const Timeout& error) {
    PyErr_SetString(classes.timeout, error.what());
  } catch (const PublisherGone& error) {
    PyErr_SetString(classes.gone, error.what());
  } catch (const Error& error) {
    PyErr_SetString(classes.error, error.what());
  }
}

}  // namespace

void add_errors(nb::module_& module) {
  classes.error = make(module, "Error", "What was attempted, on which object, and what to do.", PyExc_RuntimeError);
  classes.finished = make(module, "JobFinished", "The job is over: nothing is left to do.", classes.error);
  classes.timeout = make(module, "Timeout", "A wait was too long.",
                         nb::make_tuple(nb::handle(classes.error), nb::handle(PyExc_TimeoutError)));
  classes.gone = make(module, "PublisherGone",
                      "A subscriber waits for a generation, and nobody is there who would publish it.", classes.error);
  nb::register_exception_translator(translate);
}

}  // namespace ps::python
