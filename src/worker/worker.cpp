#include "ps/worker.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <bit>

#include "ps/errors.hpp"
#include "shm/worker_table.hpp"
#include "worker/impl.hpp"
#include "worker/waits.hpp"

namespace ps {

using shm::Counter;

namespace {

// Of a job that was asked to end and whose ps did not wait for its last worker: that one clears up. While anybody is
// alive nothing is touched (N2).
void remove_ended_job(const shm::JobSegments& job) noexcept {
  if (job.state().ended.load_acquire() == 0 || job.state().keep.load_acquire() != 0) return;
  try {
    shm::remove_job(job.job(), job.control().descriptor());
  } catch (const Error&) {
    // The next ps of that name, or the inspector's doctor, reclaims what is left.
  }
}

}  // namespace

Worker::Impl::Impl(WorkerOptions given, shm::JobSegments attached, std::uint32_t taken)
    : options(std::move(given)),
      job(std::move(attached)),
      config(job.settings()),
      rank(taken),
      entry(job.worker(taken)),
      threads(job, taken, std::max(1U, options.threads)),
      live(shm::read_live(job)) {}

Worker::Worker(WorkerOptions options) {
  auto [job, rank] = Impl::join(options);
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

void Worker::pull(const Variable& variable, std::span<float> out) {
  variable.state_->require_size(out.size(), "pull");
  if (variable.state_->is_scalar) {
    out[0] = pull(variable);
    return;
  }
  if (impl_->is_sync() && !impl_->pulled_in) impl_->pulled_in = impl_->steps.round();
  const std::uint64_t retries = variable.state_->pull(out, 0, impl_->live.settings.learning_rate, impl_->threads);
  impl_->count(Counter::kPulls).bump_relaxed(1);
  if (retries != 0) impl_->count(Counter::kPullRetries).bump_relaxed(retries);
}

float Worker::pull(const Variable& variable) {
  Variable::State& state = *variable.state_;
  state.require_size(1, "pull");
  if (impl_->is_sync() && !impl_->pulled_in) impl_->pulled_in = impl_->steps.round();
  const VariablePart& part = state.parts.front();
  float value = 0;
  std::uint64_t retries = 0;
  if (part.inplace && !state.is_scalar) {
    retries = state.pull({&value, 1}, 0, impl_->live.settings.learning_rate, impl_->threads);
  } else {
    state.pulled.front() =
        part.inplace ? part.inplace->pull_scalar(value) : part.versioned->pull_chunk(0, &value, retries);
  }
  impl_->count(Counter::kPulls).bump_relaxed(1);
  if (retries != 0) impl_->count(Counter::kPullRetries).bump_relaxed(retries);
  return value;
}

void Worker::pull_average(const Variable& variable, std::span<float> out) {
  Variable::State& state = *variable.state_;
  state.require_size(out.size(), "pull of the average");
  if (state.settings.ema == 0)
    throw Error(
        fmt::format("variable '{}' has no moving average: its job's optimizer keeps none (--ema), or its update "
                    "rule is add",
                    state.name));
  const std::uint64_t retries =
      state.pull(out, update::slots_per_element(state.settings), impl_->live.settings.learning_rate, impl_->threads);
  if (retries != 0) impl_->count(Counter::kPullRetries).bump_relaxed(retries);
}

LiveSettings Worker::live() const noexcept { return shm::read_live(impl_->job).settings; }

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
  if (!impl_->has_settled) static_cast<void>(shm::settle_spares(impl_->job, impl_->rank, impl_->job.locks()));
  impl_->gradients.remove_own();
  shm::fault_point(shm::FaultPoint::kLeaveGradient);
  shm::leave(impl_->job, impl_->rank);
  remove_ended_job(impl_->job);
}

}  // namespace ps
