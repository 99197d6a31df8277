#include "guest.hpp"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ps_shm/errors.hpp"

namespace ps_shm::python {
namespace {

using namespace nb::literals;
using Clock = std::chrono::steady_clock;

constexpr Seconds kWait{1.0};  // for a variable that a guest names: it has been declared before

GuestHandle join(const std::string& job, const std::string& group, Limit wait) {
  const auto until = std::make_shared<std::optional<Clock::time_point>>();
  const Released release;
  Worker worker({.job = job,
                 .group = group,
                 .guest = true,
                 .wait_job = limit(wait),
                 .stop_requested = [until] { return look_for_signals() || (*until && Clock::now() >= **until); },
                 .log = tell});
  return {shared_unless_inherited(std::make_unique<Rank>(fmt::format("the guest of job '{}'", job), std::move(worker))),
          until};
}

// The variables that a dict names, and its arrays.
struct Given {
  Given(const GuestHandle& self, const nb::dict& by_name, const char* verb) {
    for (const auto& [key, array] : by_name) {
      names.push_back(name_in(key));
      arrays.emplace_back(array, Use::kRead, fmt::format("{} of variable '{}': the array", verb, names.back()));
    }
    const Turn turn(*self.rank);
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      variables.push_back(self.rank->worker.variable(names[i], kWait));
      const std::span<const std::uint64_t> shape = variables[i].shape();
      arrays[i].require(variables[i].dtype(), Shape(shape.begin(), shape.end()),
                        fmt::format("{} of variable '{}': the array", verb, names[i]));
      spans.push_back(arrays[i].bytes());
    }
  }

  std::vector<std::string> names;
  std::vector<Array> arrays;
  std::vector<Variable> variables;
  std::vector<std::span<const std::byte>> spans;
};

template <class Change>
auto once(const GuestHandle& self, Limit wait, Change&& change) {
  const Turn turn(*self.rank);
  *self.until = wait ? std::optional(Clock::now() +
                                     std::chrono::duration_cast<Clock::duration>(Seconds(std::clamp(*wait, 0.0, 1e9))))
                     : std::nullopt;
  try {
    return change(self.rank->worker);
  } catch (const Interrupted&) {
    throw Timeout(fmt::format("{}: no step took its change within {} s", self.rank->what(), *wait));
  }
}

void leave(const GuestHandle& self) {
  if (self.rank->is_inherited() || self.rank->is_closed) return;
  const Turn turn(*self.rank);
  self.rank->worker.leave();
  self.rank->is_closed = true;
}

void add_guest_adds(nb::class_<GuestHandle>& type) {
  type.def(
      "add_once",
      [](const GuestHandle& self, std::uint64_t ticket, const nb::dict& deltas, const std::optional<nb::dict>& in_doubt,
         Limit wait) {
        const Given given(self, deltas, "add_once");
        const std::optional<Given> others =
            in_doubt ? std::optional<Given>(std::in_place, self, *in_doubt, "add_once") : std::nullopt;
        if (others && others->names != given.names)
          throw Error("add_once: `in_doubt` has other variables than `deltas`", ErrorCode::kInvalidArgument);
        return once(self, wait, [&](Worker& worker) {
          return worker.add_once(ticket, given.variables, given.spans,
                                 others ? others->spans : std::vector<std::span<const std::byte>>());
        });
      },
      "ticket"_a, "deltas"_a, nb::kw_only(), "in_doubt"_a = nb::none(), "wait"_a.none() = nb::none(),
      nb::sig("def add_once(self, ticket: int, deltas: dict[str, Array], *, in_doubt: dict[str, Array] | None = None, "
              "wait: float | None = None) -> int"),
      R"(Adds to variables, bypassing the optimizer, exactly once for each ticket.

If a guest was killed in a call with the same ticket and the same deltas, this call adds what that one has not; after a
call that returned, it adds nothing. Mode sync: all deltas are in one step of the workers, or in none. Other modes:
chunk by chunk, and snapshots contain all of it or nothing. In-place variables cannot tell what of a block is there: the
block in which a guest was killed gets the values of `in_doubt`, or is not touched again. Returns the number of its
elements; 0 if there is none.

Args:
    ticket: a number greater than 0, and greater than that of every earlier change.
    deltas: an array for each variable, by its name, of the variable's shape, or flat, and of its type: float32, float64
        or integers.
    in_doubt: values for the same variables in the same order, which the elements of that block are set to.
    wait: mode sync: how many seconds to wait for a step; None: without a limit. Afterwards a call with the same ticket finds
        out what has been added.

Raises:
    ValueError: an array has another shape than its variable.
    TypeError: an array has another type.
    Error: a smaller ticket than an earlier one (INVALID_ARGUMENT), no such variable (NOT_FOUND).
    JobFinished: the job ended before a step took the deltas.
    Timeout: no step took them in time.

Progress: lock-free; mode sync: blocks until the workers end a step.)");
}

void add_guest_assigns(nb::class_<GuestHandle>& type) {
  type.def(
          "assign_once",
          [](const GuestHandle& self, std::uint64_t ticket, const nb::dict& values, bool reset, Limit wait) {
            const Given given(self, values, "assign_once");
            const Slots slots = reset ? Slots::kReset : Slots::kKeep;
            once(self, wait, [&](Worker& worker) { worker.assign_once(ticket, given.variables, given.spans, slots); });
          },
          "ticket"_a, "values"_a, nb::kw_only(), "reset"_a = false, "wait"_a.none() = nb::none(),
          nb::sig("def assign_once(self, ticket: int, values: dict[str, Array], *, reset: bool = False, wait: "
                  "float | None = None) -> None"),
          R"(Sets variables, once for each ticket, as add_once() adds. Nothing is in doubt.

Args:
    ticket, wait: as for add_once().
    values: an array for each variable, by its name, of the variable's shape, or flat, and of its type.
    reset: also reset the optimizer's state, as Variable.assign() does.

Raises:
    As add_once().

Progress: as add_once().)")
      .def("leave", &leave, "Leaves the job. Calling it again does nothing, and neither does a call in a forked child.")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Guest"))
      .def(
          "__exit__", [](const GuestHandle& self, const nb::args&) { leave(self); },
          nb::sig("def __exit__(self, *_: object) -> None"))
      .def("__repr__", [](const GuestHandle& self) { return fmt::format("<{}>", self.rank->what()); });
}

}  // namespace

void add_guest(nb::module_& module) {
  nb::class_<GuestHandle> type(
      module, "Guest",
      R"(A process beside the workers of a job, which changes variables exactly once, whenever it is killed.

It is not counted as a worker: nobody waits for it, the job neither begins nor ends by it, and views do not show it. It
has the job's last rank, so a job has one guest at a time. It makes no steps of its own.

    with ps_shm.Guest("job") as guest:
        guest.add_once(17, {"w": delta})        # repeat it with the same number after a crash

Args:
    job: the name of the job.
    group: the Unix group with which another user's job is shared. Empty: only this user's jobs.
    wait: how many seconds to wait for the job to exist; None: without a limit.

Raises:
    Timeout: the job did not exist in time.
    JobFinished: the job has done its last step, or was ended.
    Error: the job has a guest, or a worker has its last rank (RANK_TAKEN).

Progress: blocks on the job's ps.)");
  type.def(
      "__init__",
      [](GuestHandle* self, const std::string& job, const std::string& group, Limit wait) {
        new (self) GuestHandle(join(job, group, wait));
      },
      "job"_a, nb::kw_only(), "group"_a = "", "wait"_a.none() = 60.0);
  add_guest_adds(type);
  add_guest_assigns(type);
}

}  // namespace ps_shm::python
