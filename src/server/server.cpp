#include "ps/server.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "ps/errors.hpp"
#include "ps/job_view.hpp"
#include "shm/counters.hpp"
#include "shm/events.hpp"
#include "shm/futex.hpp"
#include "shm/job_segments.hpp"
#include "shm/validation.hpp"
#include "shm/worker_table.hpp"
#include "update/rules.hpp"

namespace ps {
namespace {

constexpr std::uint64_t kSecondNs = 1'000'000'000;
constexpr std::uint64_t kFarewellNs = 5 * kSecondNs;  // how long a ps that was asked to end waits for its workers

void check_attached(shm::JobSegments& job) { check_job(job, update::slots_per_element); }

// Adds task `task` to the job as soon as task 0 has created it.
shm::JobSegments join_tasks(const JobConfig& config, std::uint32_t task, const ServerOptions& options,
                            const shm::ShardOptions& shard) {
  check_job_name(config.job);
  if (task >= config.tasks)
    throw Error(fmt::format("task {}: tasks are 0 to {}; raise ps-tasks", task, config.tasks - 1));
  const std::uint64_t deadline = shm::now_ns() + shm::to_ns(options.wait_job_seconds);
  std::uint64_t next_notice = shm::now_ns() + kSecondNs;
  shm::NameWait names;
  for (;;) {
    shm::AttachOutcome outcome;
    auto job = shm::JobSegments::try_attach_control(config.job, outcome);
    if (job && job->locks().is_in_use_by_other()) {
      if (job->config().shards != config.tasks)
        throw Error(fmt::format("job '{}' has {} ps task{}, you say {}: give all its tasks the same --ps-tasks",
                                config.job, job->config().shards, job->config().shards == 1 ? "" : "s", config.tasks));
      if (job->try_add_task(task, shard, check_attached)) return std::move(*job);
      if (!job->is_orphaned() && job->locks().is_in_use_by_other() &&
          job->locks().is_held_by_other(shm::kTaskByte + task))
        throw Error(fmt::format("task {} of job '{}' is served by process {} already", task, config.job,
                                job->state().task_pids[task].load_relaxed()));
    }
    if (options.stop_requested && options.stop_requested()) throw Interrupted();
    const std::uint64_t now = shm::now_ns();
    if (now >= deadline)
      throw Error(fmt::format("waited {} s for task 0 of job '{}'; start ps_shm --task 0", options.wait_job_seconds,
                              config.job));
    if (now >= next_notice) {
      next_notice += kSecondNs;
      if (options.notice) options.notice(fmt::format("task {}: waiting for task 0 of job '{}'", task, config.job));
    }
    names.pause();
  }
}

// Takes the bytes of the tasks that this ps shall be: of a job whose ps has died. Nothing where the job is gone or goes
// meanwhile, or before `patience_ns` is over has a ps. Throws Error: it has one, or its settings are not these.
std::optional<shm::JobSegments> try_adopt(const JobConfig& config, const ServerOptions& options,
                                          const shm::ShardOptions& shard, std::uint64_t patience_ns) {
  shm::AttachOutcome outcome;
  auto job = shm::JobSegments::try_attach_control(config.job, outcome);
  if (!job || job->is_orphaned()) return std::nullopt;
  const bool is_alive = job->locks().is_in_use_by_other();
  if (!is_alive && !options.adopt) return std::nullopt;  // a dead job's leftovers, for the next one to reclaim
  if (is_alive && job->locks().is_held_by_other(shm::kTaskByte) && !job->locks().is_being_removed()) {
    if (shm::now_ns() < patience_ns) return std::nullopt;
    throw Error(fmt::format("job '{}' already has a ps (process {}); choose another --job name, or end that ps first",
                            config.job, job->state().task_pids[0].load_relaxed()));
  }
  check_same(job->settings(), config);
  const std::uint32_t last = options.task ? 1 : config.tasks;
  for (std::uint32_t task = 0; task < last; ++task)
    if (!job->try_add_task(task, shard, task == 0 ? check_attached : nullptr)) {
      if (job->is_orphaned() || !job->locks().is_in_use_by_other()) return std::nullopt;
      throw Error(fmt::format("another ps has taken task {} of job '{}' over at this moment (process {})", task,
                              config.job, job->state().task_pids[task].load_relaxed()));
    }
  shm::fault_point(shm::FaultPoint::kAdoptTaken);
  const std::uint32_t servers = job->state().servers.fetch_add_acq_rel(1) + 1;
  shm::fault_point(shm::FaultPoint::kAdoptCounted);
  shm::record_event(*job, {.kind = shm::EventKind::kAdopted,
                           .step = job->global_step().load_acquire(),
                           .first = static_cast<std::uint64_t>(getpid()),
                           .second = servers});
  if (options.notice)
    options.notice(fmt::format("job {} has lost its ps; this one takes it over at step {} ({}, ps number {})",
                               config.job, job->global_step().load_acquire(),
                               is_alive ? "its workers went on" : "nobody was alive", servers));
  return job;
}

shm::JobSegments open_job(const JobConfig& config, const ServerOptions& options) {
  const shm::ShardOptions shard{options.notice};
  if (options.task.value_or(0) != 0) return join_tasks(config, *options.task, options, shard);
  check(config);
  // One that was killed a moment ago may not have ended yet.
  const std::uint64_t patience_ns = shm::now_ns() + shm::to_ns(0.25);
  shm::NameWait names;
  for (;;) {
    if (std::optional<shm::JobSegments> adopted = try_adopt(config, options, shard, patience_ns))
      return std::move(*adopted);
    if (options.stop_requested && options.stop_requested()) throw Interrupted();
    shm::Segment found;
    const shm::AttachOutcome outcome = found.open(shm::control_name(config.job), shm::Access::kReadWrite);
    const bool is_going = outcome == shm::AttachOutcome::kReady && found.descriptor() >= 0 &&
                          shm::TaskLocks(found.descriptor()).is_any_held_by_other();
    if (is_going) {  // somebody removes it, or has only just begun to use it: look again
      names.pause();
      continue;
    }
    if (options.adopt)
      throw Error(fmt::format("there is no job '{}' to take over; see inspect_shm ls for those there are", config.job));
    if (outcome != shm::AttachOutcome::kAbsent && options.notice)
      options.notice(fmt::format("job {}: reclaiming what a dead job of that name has left", config.job));
    found = {};
    shm::JobSegments job = shm::JobSegments::create(config, shard);
    if (options.task) return job;
    try {
      for (std::uint32_t task = 1; task < config.tasks; ++task) job.add_task(task, shard);
    } catch (...) {
      shm::remove_job(config.job, job.control().descriptor());
      throw;
    }
    return job;
  }
}

}  // namespace

struct Server::Impl {
  Impl(const JobConfig& config, const ServerOptions& options)
      : job(open_job(config, options)), seen(job.ranks()), tasks_alive(job.config().shards), notice(options.notice) {
    for (std::uint32_t task = 0; task < job.config().shards; ++task)
      if (!options.task || *options.task == task) own_tasks.push_back(task);
  }

  struct Seen {
    WorkerState state = WorkerState::kNever;
    std::uint64_t holders = 0;
  };
  struct Census {
    std::uint32_t ever_joined = 0, left = 0;
    bool anybody_alive = false;  // by the locks: who has left holds its byte for some instructions more
  };

  Census look(const ServeHooks& hooks);
  void look_at_tasks(const ServeHooks& hooks);
  void record(shm::EventKind kind, std::uint32_t rank, std::uint64_t pid);
  void wait_for_farewells(const ServeHooks& hooks);

  shm::JobSegments job;
  std::vector<Seen> seen;
  std::vector<bool> tasks_alive;  // other tasks, at the last look
  std::vector<std::uint32_t> own_tasks;
  std::function<void(const std::string&)> notice;
  bool is_first_task = true;  // of the live ones: it writes the events that all of them see
  pid_t owner = getpid();
};

Server::Server(const JobConfig& config, const ServerOptions& options)
    : impl_(std::make_unique<Impl>(config, options)) {}
Server::Server(Server&&) noexcept = default;

Server::~Server() {
  if (!impl_ || impl_->owner != getpid()) return;  // a forked child has no lock (L2)
  if (impl_->job.state().keep.load_acquire() != 0) return;
  // Bytes first: of two tasks that end at the same moment, each would find the other's held, and neither would remove.
  for (const std::uint32_t task : impl_->own_tasks) impl_->job.locks().release(shm::kTaskByte + task);
  shm::fault_point(shm::FaultPoint::kTaskReleased);
  try {
    // The last one out: while other tasks or workers are alive nothing is touched (N2). The last of these does it then.
    shm::remove_job(impl_->job.job(), impl_->job.control().descriptor(), impl_->notice);
  } catch (const Error& error) {
    if (impl_->notice) impl_->notice(error.what());  // the next ps of that name reclaims what is left
  }
}

void Server::Impl::record(shm::EventKind kind, std::uint32_t rank, std::uint64_t pid) {
  if (is_first_task)
    shm::record_event(job, {.kind = kind, .rank = rank, .step = job.global_step().load_acquire(), .first = pid});
}

void Server::Impl::look_at_tasks(const ServeHooks& hooks) {
  is_first_task = true;
  for (std::uint32_t task = 0; task < tasks_alive.size(); ++task) {
    if (std::find(own_tasks.begin(), own_tasks.end(), task) != own_tasks.end()) continue;
    const bool is_alive = job.locks().is_held_by_other(shm::kTaskByte + task);
    if (is_alive && task < own_tasks.front()) is_first_task = false;
    if (tasks_alive[task] == is_alive) continue;
    tasks_alive[task] = is_alive;
    const std::uint32_t pid = job.state().task_pids[task].load_relaxed();
    if (!is_alive && !job.is_over()) record(shm::EventKind::kTaskDied, task, pid);
    if (!hooks.notice || job.is_over()) continue;
    hooks.notice(is_alive ? fmt::format("ps task {} (process {}) serves its shard", task, pid)
                          : fmt::format("ps task {} (process {}) is gone; its shard and all workers go on", task, pid));
  }
}

// Reports what has changed since the last look, and counts.
Server::Impl::Census Server::Impl::look(const ServeHooks& hooks) {
  Census census;
  look_at_tasks(hooks);
  census.anybody_alive = job.locks().is_any_rank_held_by_other();
  for (std::uint32_t rank = 0; rank < job.ranks(); ++rank) {
    const shm::WorkerShm& entry = job.worker(rank);
    const Seen now{shm::worker_state(job, rank), entry.holders.load_acquire()};
    census.ever_joined += now.state != WorkerState::kNever;
    census.left += now.state == WorkerState::kLeft;
    Seen& before = seen[rank];
    if (now.state == before.state && now.holders == before.holders) continue;
    before = now;
    const std::uint32_t pid = entry.pid.load_relaxed();
    if (now.state == WorkerState::kDead) record(shm::EventKind::kDied, rank, pid);
    if (!hooks.notice) continue;
    switch (now.state) {
      case WorkerState::kNever:
        break;
      case WorkerState::kAlive:
        hooks.notice(fmt::format("worker {} (process {}) joined", rank, pid));
        break;
      case WorkerState::kLeft:
        hooks.notice(fmt::format("worker {} left after {} steps", rank, shm::counter(entry, shm::Counter::kSteps)));
        break;
      case WorkerState::kDead:
        hooks.notice(fmt::format("worker {} (process {}) died; the others go on", rank, pid));
        break;
    }
  }
  return census;
}

// Workers see `ended` at their next step or in their wait, and leave.
void Server::Impl::wait_for_farewells(const ServeHooks& hooks) {
  job.state().ended.store_release(1);
  shm::fault_point(shm::FaultPoint::kEndAsked);
  record(shm::EventKind::kEnded, 0, 0);
  shm::fault_point(shm::FaultPoint::kEndRecorded);
  for (std::uint32_t which = 0; which < shm::kBarriers; ++which) shm::futex_announce(job.barrier(which).futex);
  shm::futex_announce(job.state().clocks);
  shm::futex_announce(job.state().activity);
  shm::fault_point(shm::FaultPoint::kEndAnnounced);
  const std::uint64_t until = shm::now_ns() + kFarewellNs;
  for (;;) {
    const std::uint32_t activity = shm::futex_prepare(job.state().activity);
    if (!look(hooks).anybody_alive || shm::now_ns() >= until || (hooks.stop_at_once && hooks.stop_at_once())) return;
    shm::futex_wait_slice(job.state().activity, activity);
  }
}

EndReason Server::serve(const ServeHooks& hooks) {
  Impl& impl = *impl_;
  const JobConfig config = impl.job.settings();
  std::uint64_t next_second = shm::now_ns() + kSecondNs, alone_since = 0;
  for (;;) {
    const std::uint32_t activity = shm::futex_prepare(impl.job.state().activity);
    const Impl::Census census = impl.look(hooks);
    const std::uint64_t now = shm::now_ns();
    const bool everybody_came = census.ever_joined >= config.workers && !census.anybody_alive;
    // A job without a last step is done when all its workers say so by leaving.
    if (everybody_came && (impl.job.is_finished() || (config.steps == 0 && census.left == census.ever_joined)))
      return EndReason::kAllWorkersLeft;
    if (census.ever_joined != 0 && !census.anybody_alive) {
      if (alone_since == 0) alone_since = now;
      if (double(now - alone_since) * 1e-9 >= config.linger_seconds) return EndReason::kLingerOver;
    } else {
      alone_since = 0;
    }
    if (impl.job.state().ended.load_acquire() != 0 && !census.anybody_alive)
      return EndReason::kStopRequested;  // another task was asked to
    if (hooks.stop_requested && hooks.stop_requested()) {
      impl.wait_for_farewells(hooks);
      return EndReason::kStopRequested;
    }
    if (now >= next_second) {
      next_second += kSecondNs;
      if (hooks.every_second) hooks.every_second();
    }
    shm::futex_wait_slice(impl.job.state().activity, activity);
  }
}

std::uint64_t Server::global_step() const noexcept { return impl_->job.global_step().load_acquire(); }
void Server::keep_segments() noexcept { impl_->job.state().keep.store_release(1); }

}  // namespace ps
