#include "ps_shm/server.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>
#include <vector>

#include "config/job_settings.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/errors.hpp"
#include "shm/base/clock.hpp"
#include "shm/base/futex.hpp"
#include "shm/checks/validation.hpp"
#include "shm/segment/counters.hpp"
#include "shm/segment/events.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/steps/barrier.hpp"
#include "shm/steps/guest.hpp"
#include "shm/steps/worker_table.hpp"
#include "snapshot/snapshot.hpp"

namespace ps_shm {

const char* to_string(EndReason reason) noexcept {
  switch (reason) {
    case EndReason::kAllWorkersLeft:
      return "all workers left";
    case EndReason::kLingerOver:
      return "linger over";
    case EndReason::kStopRequested:
      return "stop requested";
  }
  return "unknown";
}

namespace {

constexpr std::uint64_t kSecondNs = 1'000'000'000;
constexpr std::uint64_t kFarewellNs = 5 * kSecondNs;  // how long a ps that ends its job waits for the workers to leave
constexpr Seconds kDeath{0.25};                       // a ps that was killed a moment ago may not have ended yet
constexpr Seconds kLeaving{1};                        // workers of a job that was ended leave after their step

shm::Trust trusted_by(const JobConfig& config) { return {.group = shm::shared_with_group(config.group).group}; }

// The wait of a ps for a name that others have yet to create or to release.
class NameTurn {
 public:
  // `what`: the start of its progress messages.
  NameTurn(const JobConfig& config, std::string what, const ServerOptions& options)
      : job_(config.job), trust_(trusted_by(config)), what_(std::move(what)), options_(options) {}

  bool is_over(WaitLimit limit) const { return shm::now_ns() >= began_ns_ + shm::to_ns(limit); }

  // Polls the caller's stop request, and reports once a second which processes it waits for. Throws Interrupted.
  void look_out() {
    if (options_.stop_requested && options_.stop_requested()) throw Interrupted();
    const std::uint64_t now = shm::now_ns();
    if (now < notice_ns_ || !options_.log) return;
    notice_ns_ = now + kSecondNs;
    const std::string keeper = shm::who_keeps(job_, trust_);
    options_.log(fmt::format("{} of job '{}'{}{}", what_, job_, keeper.empty() ? "" : ": ", keeper));
  }
  void pause() {
    look_out();
    names_.pause();
  }

 private:
  std::string job_;
  shm::Trust trust_;
  std::string what_;
  const ServerOptions& options_;
  std::uint64_t began_ns_ = shm::now_ns(), notice_ns_ = began_ns_ + kSecondNs;
  shm::NameWait names_;
};

// Adds task `task` to the job as soon as task 0 has created it.
shm::JobSegments join_tasks(const JobConfig& config, std::uint32_t task, const ServerOptions& options,
                            const shm::ShardOptions& shard) {
  check_job_name(config.job);
  if (task >= config.ps_tasks)
    throw Error(fmt::format("task {}: tasks are 0 to {}; raise ps-tasks", task, config.ps_tasks - 1));
  NameTurn turn(config, fmt::format("task {}: waiting for task 0", task), options);
  for (;;) {
    shm::AttachOutcome outcome;
    auto job = shm::JobSegments::try_attach_control(config.job, outcome, trusted_by(config));
    const bool is_served = job && job->locks().is_held_by_other(shm::kTaskByte + task);
    if (job && job->locks().is_in_use_by_other() && !job->was_ended()) {  // after the byte, as in try_adopt
      if (job->config().ps_tasks != config.ps_tasks)
        throw Error(fmt::format("job '{}' has {} ps task{}, not {}: give all its tasks the same `ps-tasks`", config.job,
                                job->config().ps_tasks, job->config().ps_tasks == 1 ? "" : "s", config.ps_tasks),
                    ErrorCode::kIncompatible);
      if (!is_served && job->try_add_task(task, shard, shm::check_job)) return std::move(*job);
      if (!job->is_orphaned() && job->locks().is_in_use_by_other() &&
          job->locks().is_held_by_other(shm::kTaskByte + task))
        throw Error(fmt::format("task {} of job '{}' is served by process {} already", task, config.job,
                                job->state().task_pids[task].load_relaxed()),
                    ErrorCode::kAlreadyExists);
    }
    if (turn.is_over(options.wait_job))
      throw Timeout(fmt::format("waited {} s for task 0 of job '{}'; start ps_shm `task` 0", options.wait_job->count(),
                                config.job));
    turn.pause();
  }
}

// Resumes a job that was ended and in which all processes have died. Does so while it holds all of the job's bytes, so
// that no process that joins at this moment is told that the job is over. Returns false if a process has become alive.
bool try_revive(const shm::JobSegments& job) {
  if (!job.locks().try_take_all()) return false;
  shm::fault_point(shm::FaultPoint::kAdoptLocked);
  if (!job.is_orphaned())
    job.state().ended.store_release(static_cast<std::uint32_t>(shm::JobEnd::kNotYet));  // (names.N7)
  shm::fault_point(shm::FaultPoint::kAdoptRevived);
  job.locks().release_all();
  return true;
}

// Takes the bytes of this ps's tasks in a job whose ps has died. Returns nothing if the job is gone or is being
// removed, or may still go within the patience of `turn`. Throws Error if the job has a ps, was ended and still has
// workers, or has other settings.
std::optional<shm::JobSegments> try_adopt(const JobConfig& config, const ServerOptions& options,
                                          const shm::ShardOptions& shard, const NameTurn& turn) {
  shm::AttachOutcome outcome;
  auto job = shm::JobSegments::try_attach_control(config.job, outcome, trusted_by(config));
  if (!job || job->is_orphaned()) return std::nullopt;
  const bool is_alive = job->locks().is_in_use_by_other();
  if (!is_alive && !options.adopt) return std::nullopt;  // the remains of a dead job, for the next creator to remove
  if (is_alive && job->locks().is_held_by_other(shm::kTaskByte) && !job->locks().is_being_removed()) {
    if (!turn.is_over(kDeath)) return std::nullopt;
    throw Error(fmt::format("job '{}' already has a ps (process {}); choose another `job` name, or end that ps first",
                            config.job, job->state().task_pids[0].load_relaxed()),
                ErrorCode::kAlreadyExists);
  }
  if (job->was_ended()) {  // read after the byte, which a ps that ends a job holds (names.N5)
    const std::string survivors = is_alive && turn.is_over(kLeaving) ? shm::who_has(*job) : "";
    if (!survivors.empty())
      throw Error(fmt::format("job '{}' was ended, and {} not left it yet; end what remains of it, or choose another "
                              "`job` name",
                              config.job, survivors),
                  ErrorCode::kAlreadyExists);
    if (is_alive || !try_revive(*job)) return std::nullopt;
  }
  check_same(job->config(), config);
  const std::uint32_t last = options.task ? 1 : config.ps_tasks;
  for (std::uint32_t task = 0; task < last; ++task)
    if (!job->try_add_task(task, shard, task == 0 ? shm::check_job : nullptr)) {
      if (job->is_orphaned() || !job->locks().is_in_use_by_other()) return std::nullopt;
      throw Error(fmt::format("another ps has just taken over task {} of job '{}' (process {})", task, config.job,
                              job->state().task_pids[task].load_relaxed()),
                  ErrorCode::kAlreadyExists);
    }
  shm::fault_point(shm::FaultPoint::kAdoptTaken);
  const std::uint32_t servers = job->state().servers.fetch_add_acq_rel(1) + 1;  // (names.N5)
  shm::fault_point(shm::FaultPoint::kAdoptCounted);
  shm::record_event(*job, {.kind = shm::EventKind::kAdopted,
                           .step = job->steps_done(),
                           .first = static_cast<std::uint64_t>(getpid()),
                           .second = servers});
  if (options.log)
    options.log(fmt::format("job {} has lost its ps; this one takes it over at step {} ({}, ps number {})", config.job,
                            job->steps_done(), is_alive ? "its workers went on" : "nobody was alive", servers));
  return job;
}

// The runtime settings in which the job differs from what it had when the checkpoint was written.
std::vector<std::string> changed_settings(const Checkpoint& checkpoint, const JobConfig& config) {
  std::vector<std::string> changed;
  for (const config::Setting<JobConfig>& setting : config::job_settings()) {
    const auto saved = checkpoint.settings().find(setting.name);
    if (!setting.traits.is_live || saved == checkpoint.settings().end()) continue;
    const std::string now = show(setting, config);
    if (now != saved->second) changed.push_back(fmt::format("{} is {} and was {}", setting.name, now, saved->second));
  }
  return changed;
}

// Stores what a job that starts from a checkpoint has behind it. If the number of workers differs, the ranks share the
// examples equally.
void begin_with(const Checkpoint& checkpoint, shm::JobSegments& job, const ServerOptions& options) {
  const std::uint64_t step = checkpoint.global_step();
  if (options.log)
    options.log(fmt::format("job {} resumes from checkpoint {}, at step {}", job.job(), checkpoint.folder(), step));
  if (const std::vector<std::string> changed = changed_settings(checkpoint, job.config());
      options.log && !changed.empty())
    options.log(
        fmt::format("job {} does not take its settings from the checkpoint: {}", job.job(), fmt::join(changed, ", ")));
  job.barrier(0).step.store_relaxed(step);  // relaxed, as all here: names.N6 publishes it
  job.barrier(0).decision.store_relaxed(shm::make_decision(step, 0, 0));
  std::vector<std::uint64_t> examples = checkpoint.examples();
  const std::uint32_t workers = job.config().workers;
  if (examples.size() != workers && !examples.empty()) {
    if (options.log)
      options.log(fmt::format("job {}: {} workers shared the data, now {} do: its order is divided anew", job.job(),
                              examples.size(), workers));
    examples.assign(workers, std::accumulate(examples.begin(), examples.end(), std::uint64_t{0}) / workers);
  }
  for (std::uint32_t rank = 0; rank < examples.size() && rank < job.ranks(); ++rank)
    shm::counter(job.worker(rank), shm::Counter::kRestoredExamples).store_relaxed(examples[rank]);
}

shm::JobSegments open_job(const JobConfig& given, const ServerOptions& options) {
  JobConfig config = given;
  std::optional<Checkpoint> checkpoint;
  if (!config.restore.empty()) {
    config.restore = std::filesystem::absolute(config.restore).string();  // workers may have another working directory
    checkpoint.emplace(config.restore);
    config.first_step = checkpoint->global_step();
  } else if (config.first_step != 0) {
    throw Error("`first_step` is that of the checkpoint that `restore` names: leave it 0", ErrorCode::kInvalidArgument);
  }
  const shm::ShardOptions shard{options.log};
  if (options.task.value_or(0) != 0) return join_tasks(config, *options.task, options, shard);
  check(config);
  NameTurn turn(config, "waiting for the name", options);
  for (;;) {
    if (std::optional<shm::JobSegments> adopted = try_adopt(config, options, shard, turn)) return std::move(*adopted);
    shm::Segment found;
    const shm::AttachOutcome outcome =
        found.open(shm::control_name(config.job), shm::Access::kReadWrite, trusted_by(config));
    const bool is_going = outcome == shm::AttachOutcome::kReady && found.descriptor() >= 0 &&
                          shm::TaskLocks(found.descriptor()).is_any_held_by_other();
    if (is_going) {  // a process removes it or has only just started to use it: try again
      turn.pause();
      continue;
    }
    turn.look_out();
    if (options.adopt) throw shm::attach_error(shm::AttachOutcome::kAbsent, shm::control_name(config.job));
    if (outcome != shm::AttachOutcome::kAbsent && options.log)
      options.log(fmt::format("job {}: removing what a dead job of that name left behind", config.job));
    found = {};
    if (checkpoint) checkpoint->verify();
    shm::JobSegments job = shm::JobSegments::create(
        config, shard, [&] { turn.look_out(); },
        [&](shm::JobSegments& made) {
          if (checkpoint) begin_with(*checkpoint, made, options);
        });
    if (options.task) return job;
    try {
      for (std::uint32_t task = 1; task < config.ps_tasks; ++task) job.add_task(task, shard);
    } catch (...) {
      shm::remove_job(config.job, job.control().descriptor());
      throw;
    }
    return job;
  }
}

EndReason to_reason(std::uint32_t ended) {
  switch (static_cast<shm::JobEnd>(ended)) {
    case shm::JobEnd::kAllLeft:
      return EndReason::kAllWorkersLeft;
    case shm::JobEnd::kLingerOver:
      return EndReason::kLingerOver;
    default:  // asked to stop, or damaged
      return EndReason::kStopRequested;
  }
}

}  // namespace

struct PS_SHM_HIDDEN Server::Impl {
  Impl(const JobConfig& config, const ServerOptions& options)
      : job(open_job(config, options)), seen(job.ranks()), tasks_alive(job.config().ps_tasks), log(options.log) {
    for (std::uint32_t task = 0; task < job.config().ps_tasks; ++task)
      if (!options.task || *options.task == task) own_tasks.push_back(task);
  }

  struct Seen {
    WorkerState state = WorkerState::kNever;
    std::uint64_t holders = 0;
  };
  struct Census {
    std::uint32_t ever_joined = 0, left = 0;
    // By the locks: a worker that has left holds its byte for a few more instructions.
    bool anybody_alive = false, any_worker_alive = false;  // a guest is no worker
  };

  Census look(const ServeHooks& hooks);
  bool has_other_than_guest() const noexcept;
  void look_at_tasks(const ServeHooks& hooks);
  void record(shm::EventKind kind, std::uint32_t rank, std::uint64_t pid);
  EndReason end(shm::JobEnd why, const ServeHooks& hooks);
  void wait_for_farewells(const ServeHooks& hooks);

  shm::JobSegments job;
  const std::shared_ptr<bool> is_taking_snapshot = std::make_shared<bool>(false);
  std::vector<Seen> seen;
  std::vector<bool> tasks_alive;  // other tasks, at the last check
  std::vector<std::uint32_t> own_tasks;
  std::function<void(const std::string&)> log;
  bool is_first_task = true;  // of the live ones: it records the events that all of them observe
  pid_t owner = getpid();
};

Server::Server(const JobConfig& config, const ServerOptions& options)
    : impl_(std::make_unique<Impl>(config, options)) {}
Server::Server(Server&&) noexcept = default;

Server::~Server() {
  if (!impl_ || impl_->owner != getpid()) return;  // children of clone() are covered, too (locks.L2)
  if (impl_->job.is_kept()) return;
  // The bytes first: if two tasks end at the same moment, each would find the other's byte held, and neither would
  // remove the job.
  for (const std::uint32_t task : impl_->own_tasks) impl_->job.locks().release(shm::kTaskByte + task);
  shm::fault_point(shm::FaultPoint::kTaskReleased);
  try {
    // The last process to leave removes the job: while other tasks or workers are alive, nothing is removed (names.N2).
    shm::remove_job(impl_->job.job(), impl_->job.control().descriptor(), impl_->log);
  } catch (const Error& error) {
    if (impl_->log) impl_->log(error.what());  // the next ps of that name reclaims what is left
  }
}

void Server::Impl::record(shm::EventKind kind, std::uint32_t rank, std::uint64_t pid) {
  if (is_first_task) shm::record_event(job, {.kind = kind, .rank = rank, .step = job.steps_done(), .first = pid});
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
    if (!hooks.log || job.is_over()) continue;
    hooks.log(is_alive ? fmt::format("ps task {} (process {}) serves its shard", task, pid)
                       : fmt::format("ps task {} (process {}) is gone; its shard and all workers go on", task, pid));
  }
}

// Whether a rank with another owner than a guest is held. A guest has the last rank (guest.G1).
bool Server::Impl::has_other_than_guest() const noexcept {
  const std::uint32_t last = job.ranks() - 1;
  const shm::WorkerShm& entry = job.worker(last);
  if (entry.holders.load_acquire() == 0 || !shm::is_guest(entry)) return true;  // (ranks.J4)
  return job.locks().is_any_rank_below_held_by_other(last);
}

// Reports what has changed since the last call, and counts the workers.
Server::Impl::Census Server::Impl::look(const ServeHooks& hooks) {
  Census census;
  look_at_tasks(hooks);
  census.anybody_alive = job.locks().is_any_rank_held_by_other();
  census.any_worker_alive = census.anybody_alive && has_other_than_guest();
  for (std::uint32_t rank = 0; rank < job.ranks(); ++rank) {
    const shm::WorkerShm& entry = job.worker(rank);
    const Seen now{shm::worker_state(job, rank), entry.holders.load_acquire()};  // (ranks.J4)
    census.ever_joined += now.state != WorkerState::kNever;
    census.left += now.state == WorkerState::kLeft;
    Seen& before = seen[rank];
    if (now.state == before.state && now.holders == before.holders) continue;
    before = now;
    const std::uint32_t pid = entry.pid.load_relaxed();
    if (now.state == WorkerState::kDead) record(shm::EventKind::kDied, rank, pid);
    if (!hooks.log) continue;
    switch (now.state) {
      case WorkerState::kNever:
        break;
      case WorkerState::kAlive:
        hooks.log(fmt::format("worker {} (process {}) joined", rank, pid));
        break;
      case WorkerState::kLeft:
        hooks.log(fmt::format("worker {} left after {} steps", rank, shm::counter(entry, shm::Counter::kSteps)));
        break;
      case WorkerState::kDead:
        hooks.log(fmt::format("worker {} (process {}) died; the others go on", rank, pid));
        break;
    }
  }
  return census;
}

// Declares the job ended, while this task's bytes are held. Workers see it at their next step or in their wait, and
// leave; processes that join are told. The reason that was stored first stays.
EndReason Server::Impl::end(shm::JobEnd why, const ServeHooks& hooks) {
  shm::fault_point(shm::FaultPoint::kEndDecided);
  auto said = static_cast<std::uint32_t>(shm::JobEnd::kNotYet);
  const bool is_first = job.state().ended.try_exchange_acq_rel(said, static_cast<std::uint32_t>(why));  // (names.N7)
  shm::fault_point(shm::FaultPoint::kEndSaid);
  if (is_first)
    shm::record_event(
        job, {.kind = shm::EventKind::kEnded, .step = job.steps_done(), .first = static_cast<std::uint64_t>(why)});
  shm::fault_point(shm::FaultPoint::kEndRecorded);
  for (std::uint32_t which = 0; which < shm::kBarriers; ++which) shm::futex_announce(job.barrier(which).futex);
  shm::futex_announce(job.state().clocks);
  shm::futex_announce(job.state().activity);
  shm::fault_point(shm::FaultPoint::kEndAnnounced);
  wait_for_farewells(hooks);
  return to_reason(job.state().ended.load_acquire());  // (names.N7)
}

void Server::Impl::wait_for_farewells(const ServeHooks& hooks) {
  const std::uint64_t until = shm::now_ns() + kFarewellNs;
  for (;;) {
    const std::uint32_t activity = shm::futex_prepare(job.state().activity);
    if (!look(hooks).anybody_alive) return;
    if (shm::now_ns() >= until || (hooks.stop_at_once && hooks.stop_at_once())) break;
    shm::futex_wait_slice(job.state().activity, activity);
  }
  const std::string survivors = hooks.log ? shm::who_has(job) : "";
  if (!survivors.empty()) hooks.log(fmt::format("{} not left yet; the last to leave removes the job", survivors));
}

EndReason Server::serve(const ServeHooks& hooks) {
  Impl& impl = *impl_;
  impl.job.refuse_inherited("server");
  const JobConfig& config = impl.job.config();
  std::uint64_t next_second = shm::now_ns() + kSecondNs, alone_since = 0;
  for (;;) {
    const std::uint32_t activity = shm::futex_prepare(impl.job.state().activity);
    const Impl::Census census = impl.look(hooks);
    const std::uint64_t now = shm::now_ns();
    const bool everybody_came = census.ever_joined >= config.workers && !census.any_worker_alive;
    // A job without a last step is done when all of its workers have left.
    if (everybody_came && (impl.job.is_finished() || (config.steps == 0 && census.left == census.ever_joined)))
      return impl.end(shm::JobEnd::kAllLeft, hooks);
    if (census.ever_joined != 0 && !census.any_worker_alive) {
      if (alone_since == 0) {
        alone_since = now;
        if (hooks.log)
          hooks.log(fmt::format("no worker is left, and {} of {} have joined; the job ends in {} s unless one joins",
                                census.ever_joined, config.workers, config.linger.count()));
      }
      if (now - alone_since >= shm::to_ns(config.linger)) return impl.end(shm::JobEnd::kLingerOver, hooks);
    } else {
      alone_since = 0;
    }
    if (impl.job.was_ended() && !census.anybody_alive)
      return to_reason(impl.job.state().ended.load_acquire());  // (names.N7) another task has ended it
    if (hooks.stop_requested && hooks.stop_requested()) return impl.end(shm::JobEnd::kAsked, hooks);
    if (now >= next_second) {
      next_second += kSecondNs;
      if (hooks.every_second) hooks.every_second();
    }
    shm::futex_wait_slice(impl.job.state().activity, activity);
  }
}

std::uint64_t Server::global_step() const {
  impl_->job.refuse_inherited("server");
  return impl_->job.steps_done();
}

void Server::keep_segments() {
  impl_->job.refuse_inherited("server");
  impl_->job.state().keep.store_release(1);  // (names.N8) pairs with is_kept
}

Snapshot Server::snapshot(const SnapshotOptions& options) {
  impl_->job.refuse_inherited("server");
  return Snapshot(std::make_unique<Snapshot::Impl>(
      Snapshotter{.job = impl_->job, .is_taking = impl_->is_taking_snapshot}, options));
}

}  // namespace ps_shm
