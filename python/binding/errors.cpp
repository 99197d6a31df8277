#include "errors.hpp"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "config/spelling.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::python {
namespace nb = nanobind;
namespace {

struct Classes {
  PyObject *error, *finished, *timeout, *gone, *missing;  // kept until the process ends
};
Classes classes;

PyObject* make(nb::module_& module, const char* name, const char* documentation, nb::handle bases, ErrorCode code,
               nb::dict attributes = nb::dict()) {
  const std::string full = nb::cast<std::string>(module.attr("__name__")) + "." + name;
  attributes["code"] = nb::cast(code);  // for exceptions that a program raises itself
  PyObject* made = PyErr_NewExceptionWithDoc(full.c_str(), documentation, bases.ptr(), attributes.ptr());
  if (made == nullptr) throw nb::python_error();
  module.attr(name) = nb::handle(made);
  return made;
}

void raise(PyObject* type, const Error& error) {
  const nb::object raised = nb::handle(type)(error.what());
  raised.attr("code") = nb::cast(error.code());
  PyErr_SetObject(type, raised.ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const JobFinished& error) {
    raise(classes.finished, error);
  } catch (const Timeout& error) {
    raise(classes.timeout, error);
  } catch (const PublisherGone& error) {
    raise(classes.gone, error);
  } catch (const Error& error) {
    raise(error.code() == ErrorCode::kNotFound ? classes.missing : classes.error, error);
  }
}

}  // namespace

void fail_not_found(const std::string& whole, const std::string& kind, const std::string& name,
                    const std::vector<std::string>& known) {
  throw Error(fmt::format("{} has no {} '{}'; it has {}", whole, kind, name, config::what_there_is(name, known)),
              ErrorCode::kNotFound);
}

void add_errors(nb::module_& module) {
  nb::enum_<ErrorCode> codes(module, "ErrorCode",
                             R"(The kind of failure that an Error reports, in its attribute `code`.

    try:
        worker = ps_shm.Worker("job", rank=1)
    except ps_shm.Error as error:
        if error.code != ps_shm.ErrorCode.RANK_TAKEN:
            raise

INVALID_ARGUMENT     an argument or a setting has a value that it cannot have
INVALID_STATE        the object or the job is not in a state for this call
NOT_FOUND            there is no such job, variable, publication, checkpoint, record or file
ALREADY_EXISTS       the name, the task or the folder is in use by a living process
RANK_TAKEN           a living worker has this rank
EXHAUSTED            a limit that the job or the publication began with is reached
NO_SPACE             there is no room in /dev/shm, in memory or on the disk
INCOMPATIBLE         made by another version or build, or for another model, than what uses it
DAMAGED              a segment or a file contains values that this library does not write
PERMISSION_DENIED    the segment, the file or the job belongs to another user, or every user may change it
UNAVAILABLE          other processes are stopped or busy; the same call may succeed later
TIMED_OUT            a limit of time has passed: the caller's, or one of the job's settings
SYSTEM               a call of the operating system failed otherwise; the text has its reason
DEVICE               there is no such GPU, or it failed
NOT_FINITE           a loss or a value is NaN or infinite
INTERRUPTED          a wait ended because its caller asked for that
JOB_FINISHED         the job has done its last step, or was ended
PUBLISHER_GONE       the publication has no live publisher

docs/errors.md describes the causes of each code and what to do. Later versions may add codes.)");
  for (std::uint32_t i = 1; i <= static_cast<std::uint32_t>(ErrorCode::kPublisherGone); ++i)
    codes.value(to_string(static_cast<ErrorCode>(i)), static_cast<ErrorCode>(i));
  classes.error = make(module, "Error",
                       R"(An operation of this package failed.

The text says what was attempted, on which object, and what to do. The attribute `code`, an ErrorCode, says what kind
of failure it is. Arrays that do not fit raise TypeError or ValueError instead.)",
                       PyExc_RuntimeError, ErrorCode::kInvalidArgument);
  classes.finished =
      make(module, "JobFinished",
           "The job has finished its last step, or was ended: a worker has nothing left to do. `code` is JOB_FINISHED.",
           classes.error, ErrorCode::kJobFinished);
  classes.timeout =
      make(module, "Timeout",
           "A limit of time has passed: an argument `wait` or `timeout`, or the job's `step_timeout`. Every wait that has a "
           "limit raises this when it is over. All limits are in seconds: 0 does not wait, and None has no limit. It is also a TimeoutError. `code` is TIMED_OUT.",
           nb::make_tuple(nb::handle(classes.error), nb::handle(PyExc_TimeoutError)), ErrorCode::kTimedOut);
  nb::dict text;  // that of KeyError would be in quotation marks
  text["__str__"] = nb::handle(PyExc_BaseException).attr("__str__");
  classes.missing =
      make(module, "NotFound",
           "There is no job, variable, table, tensor, checkpoint or file of that name. It is also a KeyError. The text "
           "lists the names that there are, 20 of them at most. `code` is NOT_FOUND.",
           nb::make_tuple(nb::handle(classes.error), nb::handle(PyExc_KeyError)), ErrorCode::kNotFound, text);
  classes.gone = make(module, "PublisherGone",
                      "A subscriber waits for a newer generation, and the publication has no live publisher. Reading "
                      "may be tried again when another publisher has taken over. `code` is PUBLISHER_GONE.",
                      classes.error, ErrorCode::kPublisherGone);
  nb::register_exception_translator(translate);
}

}  // namespace ps_shm::python
