#include "ps/worker.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <bit>
#include <deque>
#include <vector>

#include "ps/errors.hpp"
#include "shm/barrier.hpp"
#include "shm/counters.hpp"
#include "shm/directory.hpp"
#include "shm/inplace_slot.hpp"
#include "shm/versioned_slot.hpp"
#include "shm/worker_table.hpp"
#include "update/rules.hpp"
#include "worker/gradients.hpp"
#include "worker/sync_step.hpp"
#include "worker/variable_state.hpp"
#include "worker/waits.hpp"

namespace ps {

using shm::Counter;
using shm::JobSegments;

struct Worker::Impl {
  WorkerOptions options;
  JobSegments job;
  JobConfig config;
  std::uint32_t rank;
  shm::WorkerShm& entry;
  shm::Directory directory{job};
  shm::Spares spares{job, rank};
  shm::Barrier steps{job, rank, 0}, meetings{job, rank, 1};
  GradientSegments gradients{job, rank};
  std::deque<Variable::State> variables;  // a deque: handles point into it
  bool has_pushed = false;                // sync: since the last step(); the step it was for
  std::uint64_t pushed_for = 0;
  pid_t owner = getpid();
  bool has_left = false;

  Impl(WorkerOptions given, JobSegments attached, std::uint32_t taken)
      : options(std::move(given)),
        job(std::move(attached)),
        config(job.settings()),
        rank(taken),
        entry(job.worker(taken)) {}

  shm::AtomicShm<std::uint64_t>& count(Counter which) noexcept { return shm::counter(entry, which); }
  bool is_sync() const noexcept { return config.mode == Mode::kSync; }

  void take_over();
  void initialise(Variable::State& state, const Initializer& initialize);
  void wait_initialised(Variable::State& state, const Initializer* initialize, double deadline_seconds);
  Variable::State& state_at(std::uint32_t position);
  void finish(shm::Barrier& barrier, std::uint64_t round, bool applies);
  update::Hyper hyper(const shm::VariableShm& record, std::uint64_t step) const noexcept {
    return {learning_rate_at(job.config(), step), (record.flags & shm::kRegularize) != 0 ? config.l2 : 0.0F};
  }
};

namespace {

// Waits for the job and takes a rank of it.
std::pair<JobSegments, std::uint32_t> join(const WorkerOptions& options) {
  check_job_name(options.job);
  if (options.rank && *options.rank >= kMaxWorkers)
    throw Error(fmt::format("rank {} is out of range: ranks are 0 to {}", *options.rank, kMaxWorkers - 1));
  constexpr double kRankPatience = 1.0;  // a successor may come before the kernel has finished ending its predecessor
  Wait wait(options, options.wait_job_seconds, 1.0), rank_wait(options, kRankPatience, 60.0);
  shm::NameWatch names;
  std::string reason = "there is no such job yet";
  for (;;) {
    shm::AttachOutcome outcome;
    std::optional<JobSegments> job = JobSegments::try_attach(options.job, shm::Access::kReadWrite, outcome);
    if (job && !job->locks().is_any_held_by_other()) {
      job.reset();
      reason = "a job of that name has died and no ps has taken its place yet";
    }
    if (job) {
      if (job->is_over())
        throw JobFinished(fmt::format("job {} finished at step {}", options.job, job->global_step().load_acquire()));
      if (options.rank && *options.rank >= job->ranks())
        throw Error(
            fmt::format("rank {} is out of range: job '{}' has ranks 0 to {}; start its ps_shm with more "
                        "--max-workers",
                        *options.rank, options.job, job->ranks() - 1));
      std::uint32_t rank = 0;
      switch (shm::try_join(*job, options.rank, rank)) {
        case shm::JoinOutcome::kJoined:
          return {std::move(*job), rank};
        case shm::JoinOutcome::kTableFull:
          throw Error(fmt::format("job '{}' has {} workers already; start its ps_shm with more --max-workers",
                                  options.job, job->ranks()));
        case shm::JoinOutcome::kRankTaken:
          if (!rank_wait.slice([] { return std::string(); }))
            throw Error(fmt::format("rank {} of job '{}' is taken by process {}; choose another --rank, or none",
                                    *options.rank, options.job, job->worker(*options.rank).pid.load_relaxed()));
          break;
        case shm::JoinOutcome::kJobRemoved:
          break;
      }
    }
    const auto what = [&] { return fmt::format("waiting for job '{}': {}", options.job, reason); };
    if (!wait.slice(what))
      throw Error(
          fmt::format("waited {} s for job '{}': {}; start its ps_shm, or see inspect_shm ls for the jobs there are",
                      options.wait_job_seconds, options.job, reason));
    names.wait(shm::kWaitSliceMs);
  }
}

}  // namespace

Worker::Worker(WorkerOptions options) {
  auto [job, rank] = join(options);
  impl_ = std::make_unique<Impl>(std::move(options), std::move(job), rank);
  try {
    impl_->take_over();
  } catch (...) {
    leave();
    throw;
  }
}

Worker::~Worker() { leave(); }
Worker::Worker(Worker&&) noexcept = default;

std::uint32_t Worker::rank() const noexcept { return impl_->rank; }
const JobConfig& Worker::config() const noexcept { return impl_->config; }

// What a dead predecessor of the rank has left half done.
void Worker::Impl::take_over() {
  spares.settle(job.locks());
  if (!is_sync()) return;
  if (steps.has_arrived()) finish(steps, steps.round(), true);  // B4: its gradient counts; nothing of it is overwritten
  gradients.create_own();
}

void Worker::Impl::finish(shm::Barrier& barrier, std::uint64_t round, bool applies) {
  const double timeout = config.step_timeout_seconds;
  constexpr double kWarnSeconds = 10.0;
  Wait wait(options, timeout, kWarnSeconds);
  const WaitMark mark(entry, applies ? shm::WaitingFor::kStep : shm::WaitingFor::kBarrier, round);
  const auto apply = [&](const shm::RankSet& contributors) {
    if (!applies) return;
    if (!contributors.contains(rank) && has_pushed) count(Counter::kDropped).bump_relaxed(1);
    apply_sync_step(job, rank, round, contributors, gradients, spares);
  };
  const auto each_slice = [&](const std::vector<std::uint32_t>& missing) {
    const auto whom = [&] {
      const std::uint32_t to_come = barrier.still_to_join();
      return to_come != 0 ? fmt::format("{} of {} workers to join", to_come, config.workers)
                          : fmt::format("rank{} {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
    };
    if (job.state().ended.load_acquire() != 0)
      throw JobFinished(fmt::format("job {} was ended at step {}", job.job(), job.global_step().load_acquire()));
    if (!wait.slice([&] { return fmt::format("worker {}: waiting at step {} for {}", rank, round, whom()); }))
      throw Error(
          fmt::format("step {} of job '{}' did not complete within {} s: still waiting for {}; end or continue "
                      "it, or raise --step-timeout",
                      round, job.job(), timeout, whom()));
  };
  barrier.finish(round, apply, each_slice);
}

Variable::State& Worker::Impl::state_at(std::uint32_t position) {
  for (Variable::State& state : variables)
    if (state.position == position) return state;
  const shm::VariableShm& record = directory.at(position);
  return variables.emplace_back(record, position, job.shard_data(record.shard));
}

void Worker::Impl::initialise(Variable::State& state, const Initializer& initialize) {
  shm::VariableShm& record = directory.at(state.position);
  std::vector<float> values(record.elements);
  initialize(values);
  state.set_values(values);
  record.init.store_release(shm::kInitialised);  // pairs with the waiters' acquire: words, stamps and values
  shm::futex_announce(job.state().activity);
}

// Without an initializer this worker can't take over from one that has died, so it needs a deadline (0: none).
void Worker::Impl::wait_initialised(Variable::State& state, const Initializer* initialize, double deadline_seconds) {
  shm::VariableShm& record = directory.at(state.position);
  const std::uint64_t my_claim = shm::make_init_claim(entry.holders.load_acquire(), shm::kRankByte + rank);
  const auto is_dead = [&](std::uint64_t claim) {
    const std::uint32_t byte = static_cast<std::uint32_t>(claim & 0xffff) - 1;
    if (byte == shm::kRankByte + rank) return claim != my_claim;  // a predecessor's (L1: don't ask for one's own byte)
    return !job.locks().is_held_by_other(byte);
  };
  const auto try_claim = [&] {
    std::uint64_t claim = record.init.load_acquire();
    if (claim == shm::kInitialised || initialize == nullptr || (claim != 0 && !is_dead(claim))) return;
    if (!record.init.try_exchange_acq_rel(claim, my_claim)) return;
    try {
      this->initialise(state, *initialize);
    } catch (...) {
      record.init.store_release(0);  // the next one may try
      throw;
    }
  };
  try_claim();
  if (record.init.load_acquire() == shm::kInitialised) return;
  Wait wait(options, deadline_seconds, 1.0);
  const WaitMark mark(entry, shm::WaitingFor::kInitialised, state.position);
  shm::wait_for_fact(
      job.state().activity, [&] { return record.init.load_acquire() == shm::kInitialised; },
      [&] {
        try_claim();
        if (job.is_over()) throw JobFinished(fmt::format("job {} was ended", job.job()));
        const auto what = [&] {
          return fmt::format("worker {}: waiting for variable '{}' to be initialised", rank, record.name);
        };
        if (!wait.slice(what))
          throw Error(
              fmt::format("variable '{}' of job '{}' was not initialised within {} s; start a worker that "
                          "initialises it",
                          record.name, job.job(), deadline_seconds));
      });
}

Variable Worker::variable(const VariableSpec& spec, const Initializer& initialize) {
  Impl& impl = *impl_;
  const std::uint32_t position =
      impl.directory.declare(spec, update::slots_per_element(spec.rule), shm::kRankByte + impl.rank);
  Variable::State& state = impl.state_at(position);
  impl.wait_initialised(state, &initialize, 0);
  state.forget_pulls();
  return Variable(&state);
}

Variable Worker::variable(const std::string& name, double wait_seconds) {
  Impl& impl = *impl_;
  std::uint32_t position = impl.directory.find(name);
  if (position == shm::kNoVariable) {
    Wait wait(impl.options, wait_seconds, 1.0);
    const WaitMark mark(impl.entry, shm::WaitingFor::kVariable, 0);
    shm::wait_for_fact(
        impl.job.state().activity, [&] { return (position = impl.directory.find(name)) != shm::kNoVariable; },
        [&] {
          if (!wait.slice(
                  [&] { return fmt::format("worker {}: waiting for variable '{}' to be declared", impl.rank, name); }))
            throw Error(fmt::format("job '{}' has no variable '{}'; it has: {}", impl.job.job(), name,
                                    fmt::join(impl.directory.names(), ", ")));
        });
  }
  Variable::State& state = impl.state_at(position);
  impl.wait_initialised(state, nullptr, wait_seconds);
  state.forget_pulls();
  return Variable(&state);
}

void Worker::pull(const Variable& variable, std::span<float> out) {
  Variable::State& state = *variable.state_;
  state.require_size(out.size(), "pull");
  std::uint64_t retries = 0;
  if (state.versioned)
    for (std::uint64_t chunk = 0; chunk < state.pulled.size(); ++chunk)
      state.pulled[chunk] =
          state.versioned->pull_chunk(chunk, out.data() + state.versioned->chunk_begin(chunk), retries);
  else
    for (std::uint64_t block = 0; block < state.pulled.size(); ++block)
      state.pulled[block] = state.inplace->pull_block(block, out.data() + state.inplace->block_begin(block));
  impl_->count(Counter::kPulls).bump_relaxed(1);
  if (retries != 0) impl_->count(Counter::kPullRetries).bump_relaxed(retries);
}

void Worker::push(const Variable& variable, std::span<const float> gradient) {
  Impl& impl = *impl_;
  Variable::State& state = *variable.state_;
  state.require_size(gradient.size(), "push");
  impl.count(Counter::kPushes).bump_relaxed(1);
  if (impl.is_sync()) {
    if (!impl.has_pushed) impl.pushed_for = impl.steps.round();
    impl.has_pushed = true;
    return impl.gradients.write(state.record, state.position, impl.pushed_for, gradient);
  }
  const std::uint64_t step = impl.job.global_step().load_acquire();
  const std::uint64_t retries =
      state.push(gradient, impl.hyper(state.record, step), impl.config.adds, {impl.rank, step}, impl.config.workers,
                 impl.spares, [&](std::uint64_t staleness) { shm::record_staleness(impl.entry, staleness); });
  if (retries != 0) impl.count(Counter::kPushRetries).bump_relaxed(retries);
}

std::uint64_t Worker::step() {
  Impl& impl = *impl_;
  impl.count(Counter::kSteps).bump_relaxed(1);
  if (!impl.is_sync()) return impl.job.global_step().fetch_add_acq_rel(1) + 1;
  const std::uint64_t round = impl.steps.round();
  if (impl.has_pushed && impl.pushed_for != round) {  // a newcomer's: the step closed without it
    impl.count(Counter::kDropped).bump_relaxed(1);
  } else {
    impl.steps.arrive(round);
    impl.finish(impl.steps, round, true);
    shm::record_staleness(impl.entry, 0);  // by construction
  }
  impl.has_pushed = false;
  return impl.steps.round();
}

void Worker::barrier() {
  const std::uint64_t round = impl_->meetings.round();
  impl_->meetings.arrive(round);
  impl_->finish(impl_->meetings, round, false);
}

void Worker::wait_for_workers() {
  Impl& impl = *impl_;
  Wait wait(impl.options, 0, 1.0);
  const WaitMark mark(impl.entry, shm::WaitingFor::kBarrier, 0);
  shm::wait_for_fact(
      impl.job.state().activity, [&] { return impl.steps.still_to_join() == 0; },
      [&] {
        if (impl.job.is_over()) throw JobFinished(fmt::format("job {} was ended", impl.job.job()));
        static_cast<void>(wait.slice([&] {
          return fmt::format("worker {}: waiting for {} of {} workers to join", impl.rank, impl.steps.still_to_join(),
                             impl.config.workers);
        }));
      });
}

std::uint64_t Worker::global_step() const noexcept { return impl_->job.global_step().load_acquire(); }
bool Worker::finished() const noexcept { return impl_->job.is_over(); }

void Worker::report(double loss, std::uint64_t examples_done) noexcept {
  impl_->count(Counter::kLossBits).store_relaxed(std::bit_cast<std::uint64_t>(loss));
  impl_->count(Counter::kExamples).store_relaxed(examples_done);
}

StalenessSummary Worker::staleness() const {
  shm::StalenessTotals totals;
  totals.add(impl_->entry);
  return {totals.mean(), totals.percentile(0.5), totals.percentile(0.99), totals.max};
}

void Worker::leave() noexcept {
  if (!impl_ || impl_->has_left || impl_->owner != getpid())
    return;  // a forked child has neither lock nor mapping (L2)
  impl_->has_left = true;
  impl_->gradients.remove_own();
  shm::leave(impl_->job, impl_->rank);
}

}  // namespace ps
