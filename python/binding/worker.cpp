#include "worker.hpp"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>

#include "config/job_settings.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_control.hpp"
#include "records.hpp"
#include "settings.hpp"
#include "worker/device_port.hpp"

namespace ps_shm::python {
namespace {

using namespace nb::literals;

// The ranks that this process has taken, also those that it has left. A forked child has a list of its own: a thread of
// the parent may have had the mutex. Lists are not destroyed, since ranks may be destroyed after all static objects.
struct OwnRanks {
  const std::uint32_t forks = fork_count();
  std::mutex mutex;
  std::set<const Rank*> ranks;
};
OwnRanks& own_ranks() {
  static std::atomic<OwnRanks*> current{nullptr};
  OwnRanks* found = current.load(std::memory_order_acquire);
  while (found == nullptr || found->forks != fork_count()) {
    auto made = std::make_unique<OwnRanks>();
    if (current.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) found = made.release();
  }
  return *found;
}

SharedRank join(const std::string& job, const std::string& group, std::optional<std::uint32_t> rank,
                std::uint32_t threads, Limit wait) {
  const Released release;
  Worker worker({.job = job,
                 .group = group,
                 .rank = rank,
                 .threads = threads,
                 .wait_job = limit(wait),
                 .stop_requested = look_for_signals,
                 .log = tell});
  const std::string what = fmt::format("worker {} of job '{}'", worker.rank(), job);
  return shared_unless_inherited(std::make_unique<Rank>(what, std::move(worker)));
}

// Precedes the elements in the shared block, and describes the array.
struct SharedHeader {
  std::uint64_t dtype = 0, axes = 0, extents[30] = {};
};
static_assert(sizeof(SharedHeader) == 256, "elements behind it lie aligned to 64 bytes");

nb::object shared_data(const WorkerHandle& self, const std::string& content, nb::callable load) {
  SharedBytes block;
  {
    const Turn turn(*self.rank);
    block = self.use().shared_data(content, [&](const auto& allocate) {
      with_python([&] {
        const Array array(load(), Use::kRead, "what `load` has returned");
        SharedHeader header{.dtype = static_cast<std::uint64_t>(array.dtype()), .axes = array.shape().size()};
        if (header.axes > std::size(header.extents)) throw nb::value_error("an array has at most 30 axes here");
        std::copy(array.shape().begin(), array.shape().end(), header.extents);
        const std::span<std::byte> out = allocate(sizeof header + array.bytes().size());
        std::memcpy(out.data(), &header, sizeof header);
        std::memcpy(out.data() + sizeof header, array.bytes().data(), array.bytes().size());
      });
    });
  }
  SharedHeader header;
  if (block.bytes.size() < sizeof header)
    throw Error("the job's shared block was not loaded from Python", ErrorCode::kInvalidState);
  std::memcpy(&header, block.bytes.data(), sizeof header);
  const auto dtype = static_cast<DType>(header.dtype);
  if (bytes_of(dtype) == 0 || header.axes > std::size(header.extents))
    throw Error("the job's shared block was not loaded from Python", ErrorCode::kInvalidState);
  auto* kept = new std::shared_ptr<const void>(block.memory);
  const nb::capsule owner(kept,
                          [](void* memory) noexcept { delete static_cast<std::shared_ptr<const void>*>(memory); });
  return as_array(block.bytes.data() + sizeof header, dtype, Shape(header.extents, header.extents + header.axes), owner,
                  Use::kRead);
}

void leave(const WorkerHandle& self) {
  if (self.rank->is_inherited() || self.rank->is_closed) return;
  const Turn turn(*self.rank);
  self.use().leave();
  self.rank->is_closed = true;
}

void add_staleness(nb::module_& module) {
  nb::class_<StalenessSummary> type(module, "Staleness",
                                    R"(The staleness of a worker's pushes, or of those of all workers.

The staleness of one push of a chunk (of an in-place variable: of a block) is the number of updates by other workers
that reached the chunk between the worker's pull and its push.)");
  add_figures(type);
  type.def("__repr__", [](const StalenessSummary& self) {
    if (self.count == 0) return std::string("Staleness(nothing measured)");
    return fmt::format("Staleness(mean={:.2f}, p50={}, p99={}, max={})", self.mean, self.p50, self.p99, self.max);
  });
}

void add_settings_access(nb::class_<WorkerHandle>& type) {
  type.def_prop_ro(
          "settings", [](const WorkerHandle& self) { return as_dict(self.use().config()); },
          nb::sig("def settings(self) -> dict[str, typing.Any]"),
          "The settings that the job was created with, under the names of the options with _ instead of -, as int, "
          "float, bool, str or dict; None: not given.")
      .def_prop_ro(
          "live", [](const WorkerHandle& self) { return self.rank->check(), live_dict(self.use().live()); },
          nb::sig("def live(self) -> dict[str, typing.Any]"),
          "The runtime settings in force: lr, momentum, beta1, clip_norm, mode, staleness, quorum, stale_limit and "
          "workers. This worker applies a change of them from its next step on.")
      .def(
          "set",
          [](const WorkerHandle& self, const nb::kwargs& settings) {
            self.rank->check();
            self.rank->with_control([&](JobControl& control) {
              control.change([&](LiveSettings& live) { alter(live, control.config(), settings); });
            });
          },
          "settings"_a, nb::sig("def set(self, **settings: Setting) -> None"),
          "Changes runtime settings of the job for all its workers, as Server.set() does: set(lr=0.05).")
      .def(
          "refresh_optimizer",
          [](const WorkerHandle& self) {
            const Turn turn(*self.rank);
            DevicePort(self.use()).refresh_optimizer();
          },
          R"(Applies a change of lr, momentum, beta1 or clip_norm from this worker's next push on.

Without this call the worker applies it from its next step on. In mode sync it does nothing.)")
      .def(
          "check_settings",
          [](const WorkerHandle& self, const nb::dict& settings) { check_given(self.use().config(), settings); },
          "settings"_a, nb::sig("def check_settings(self, settings: dict[str, typing.Any]) -> None"),
          R"(Checks that the job was created with these settings.

Args:
    settings: values by the names that Server takes. None stands for whatever the job has.

Raises:
    Error: the job has another value of a setting (INCOMPATIBLE; the message says which), or a value is invalid.
    TypeError: there is no setting of that name.)");
}

void add_progress(nb::class_<WorkerHandle>& type) {
  type.def_prop_ro(
          "global_step", [](const WorkerHandle& self) { return self.rank->check(), self.use().global_step(); },
          "The number of global steps that the job has done so far. Wait-free.")
      .def_prop_ro(
          "finished", [](const WorkerHandle& self) { return self.rank->check(), self.use().finished(); },
          "Whether the job has done its last step, or was ended. Wait-free.")
      .def_prop_ro(
          "ended",
          [](const WorkerHandle& self) {
            self.rank->check();
            const Worker& worker = self.use();
            return worker.finished() && (worker.config().steps == 0 || worker.global_step() < worker.config().steps);
          },
          "Whether the job was ended before its last step, for example by Server.close(). Wait-free.");
}

nb::class_<WorkerHandle> add_facts(nb::module_& module) {
  nb::class_<WorkerHandle> type(
      module, "Worker", "A worker of a job, the owner of one rank. Programs use ps_shm.Worker, which derives from it.");
  type.def(
          "__init__",
          [](WorkerHandle* self, const std::string& job, const std::string& group, std::optional<std::uint32_t> rank,
             std::uint32_t threads, Limit wait) { new (self) WorkerHandle{join(job, group, rank, threads, wait)}; },
          "job"_a, "group"_a, "rank"_a.none(), "threads"_a, "wait"_a.none())
      .def_prop_ro(
          "rank", [](const WorkerHandle& self) { return self.rank->check(), self.use().rank(); },
          "The worker's number in the job, from 0.")
      .def_prop_ro(
          "is_chief", [](const WorkerHandle& self) { return self.rank->check(), self.use().is_chief(); },
          "Whether this worker is the chief, whose rank is 0.")
      .def_prop_ro(
          "workers", [](const WorkerHandle& self) { return self.rank->check(), self.use().live().workers; },
          "The number of workers of the job: its setting `workers`, which in an elastic job changes while it runs.")
      .def_prop_ro(
          "job", [](const WorkerHandle& self) { return self.use().config().job; }, "The job's name.");
  add_settings_access(type);
  add_progress(type);
  return type;
}

void add_steps(nb::class_<WorkerHandle>& type) {
  type.def(
          "step",
          [](const WorkerHandle& self) {
            const Turn turn(*self.rank);
            const std::uint64_t global_step = self.use().step();
            ++self.rank->steps;
            return global_step;
          },
          R"(Ends a training step and returns the global step after it.

Mode async: adds one to the global step. Mode ssp: adds one, then blocks while this worker is more than `staleness`
steps ahead of the slowest. Mode sync: blocks until every worker that has neither died nor left has pushed (with a
quorum: until `quorum` of them have), helps to apply the mean of the gradients, and returns when the step is complete.
A gradient that comes too late for its step is dropped and counted.

With an age limit (`stale`), a step of mode async or ssp whose gradient is too old changes nothing, is not counted in
the global step, and is counted as dropped.

Waiting notices the death of other workers. When the job's `step_timeout` expires, a sync step goes on without the
missing workers. Ctrl-C raises KeyboardInterrupt at once; the job goes on. After a sync step() that has raised, the
next call goes on with the same step. In mode ssp the step is counted even if the wait raises.

Raises:
    Timeout: the step_timeout expired in mode ssp, or in a first sync step whose workers have not all joined.
    JobFinished: the job was ended during a sync step.

Progress: async: wait-free. ssp and sync: blocks on other workers.)")
      .def_prop_ro(
          "steps", [](const WorkerHandle& self) { return self.rank->steps.load(); },
          "The number of steps that this object has ended, that is, of step() calls that returned.")
      .def_prop_ro(
          "dropped_steps", [](const WorkerHandle& self) { return self.rank->check(), self.use().dropped_steps(); },
          "How many steps of this rank have been dropped, as their gradient came too late for a sync step or was too "
          "old (the job's setting `stale`). A step() was dropped if it makes this grow. Wait-free.");
}

void add_waits(nb::class_<WorkerHandle>& type) {
  type.def(
          "barrier",
          [](const WorkerHandle& self) {
            const Turn turn(*self.rank);
            self.use().barrier();
          },
          R"(Waits until every worker that has neither died nor left has called barrier().

The first one also waits until as many workers have joined as the job starts with. A call that raised while it waited
has arrived at its barrier, which the others may pass. The next call ends that barrier.

Raises:
    Timeout: the job's `step_timeout` expired.
    JobFinished: the job was ended.

Progress: blocks on other workers.)")
      .def(
          "wait_for_workers",
          [](const WorkerHandle& self) {
            const Turn turn(*self.rank);
            self.use().wait_for_workers();
          },
          R"(Waits until as many workers have joined as the job starts with.

Those that have died or left since are included. It is never necessary, but useful for an equal division of a short
job's work. There is no timeout; a line on stderr reports the wait every second.

Raises:
    JobFinished: the job has ended.

Progress: blocks on workers that have not joined.)")
      .def(
          "wait_to_be_last",
          [](const WorkerHandle& self) {
            const Turn turn(*self.rank);
            return self.use().wait_to_be_last();
          },
          R"(Chooses the worker that does something at the end for all, such as evaluating a table.

A table is gone with the last worker. There is no timeout; a line on stderr reports the wait every second, and names the
workers that it waits for.

Returns:
    bool: False as soon as a worker of a lower rank is alive; True once all others have left or died.

Raises:
    Error: for a guest, or within a push group (INVALID_STATE).

Progress: blocks on workers that have not left.)");
}

void add_reports(nb::class_<WorkerHandle>& type) {
  type.def(
          "report",
          [](const WorkerHandle& self, double loss, std::uint64_t examples) {
            const Turn turn(*self.rank);
            self.use().report(loss, examples);
          },
          "loss"_a, "examples"_a,
          R"(Publishes figures of this worker that progress lines, View.workers() and inspect_shm show.

Args:
    loss: the current training loss.
    examples: the number of examples that this worker has processed since it joined.

Progress: wait-free.)")
      .def(
          "staleness",
          [](const WorkerHandle& self) {
            const Turn turn(*self.rank);
            return self.use().staleness();
          },
          "Returns the Staleness of the pushes made by this rank so far, including those of its earlier owners.")
      .def("shared_data", &shared_data, "content"_a, "load"_a,
           nb::sig("def shared_data(self, content: str, load: collections.abc.Callable[[], Array]) -> "
                   "numpy.typing.NDArray[typing.Any]"),
           R"(Returns a read-only array that exists once for all workers of the job, such as the data they train on.

The first worker to come loads it into shared memory. The others wait for that, and one of them takes over if the
loader dies. A job has one such array, which is removed with it. The memory stays valid as long as the array exists,
but not in a forked child.

Args:
    content: what the array is; a worker that expects something else is refused.
    load: called without arguments, in one worker; it returns an array of at most 30 axes.

Raises:
    Error: the job has a shared array of another content, or one that was not loaded from Python (INVALID_STATE); /dev/shm
        is full (NO_SPACE).
    JobFinished: the job was ended.
    Exceptions of `load` propagate, and the next worker loads it.

Progress: blocks on the worker that loads.)")
      .def("leave", &leave,
           R"(Leaves the job and gives the rank back; the other workers no longer wait for this one.

The worker and its variables cannot be used afterwards: calls raise Error (INVALID_STATE). Calling leave() again does
nothing. In a forked child it has no effect.)")
      .def("__repr__", [](const WorkerHandle& self) { return fmt::format("<{}>", self.rank->what()); });
}

}  // namespace

Rank::Rank(const std::string& what, Worker given) : Guarded(what), worker(std::move(given)) {
  OwnRanks& own = own_ranks();
  const std::lock_guard lock(own.mutex);
  own.ranks.insert(this);
}

Rank::~Rank() {
  OwnRanks& own = own_ranks();
  const std::lock_guard lock(own.mutex);
  own.ranks.erase(this);
}

bool is_own(const std::string& job, const WorkerInfo& worker) {
  if (worker.pid != static_cast<std::uint32_t>(getpid())) return false;
  OwnRanks& own = own_ranks();
  const std::lock_guard lock(own.mutex);
  return std::any_of(own.ranks.begin(), own.ranks.end(), [&](const Rank* one) {
    return !one->is_closed && one->worker.rank() == worker.rank && one->worker.config().job == job;
  });
}

void add_worker(nb::module_& module) {
  module.def("is_own", &is_own, "job"_a, "worker"_a, nb::sig("def is_own(job: str, worker: WorkerInfo) -> bool"),
             "Whether the worker of that job is one of this process: a process of another PID namespace may have its "
             "number.");
  add_staleness(module);
  nb::class_<WorkerHandle> type = add_facts(module);
  add_declaring_methods(type);
  add_table_method(type);
  add_steps(type);
  add_waits(type);
  add_reports(type);
}

}  // namespace ps_shm::python
