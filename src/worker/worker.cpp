#include "ps_shm/worker.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "ps_shm/errors.hpp"
#include "shm/base/process_state.hpp"
#include "shm/slots/recovery.hpp"
#include "shm/steps/worker_table.hpp"
#include "update/bfloat16.hpp"
#include "update/bytes.hpp"
#include "worker/barrier_wait.hpp"
#include "worker/impl.hpp"
#include "worker/waits.hpp"

namespace ps_shm {

using shm::Counter;

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

void Worker::Impl::pull(VariableState& state, std::span<float> out) {
  note_pull();
  const std::uint64_t retries = state.pull(out, 0, live.settings.lr, threads);
  count(Counter::kPulls).bump_relaxed(1);
  if (retries != 0) count(Counter::kPullRetries).bump_relaxed(retries);
}

void Worker::pull(const Variable& variable, std::span<float> out) {
  if (!variable.state_->has_size(out.size())) return owned().pull_widened(*variable.state_, out);
  if (variable.state_->is_scalar) {
    out[0] = pull(variable);
    return;
  }
  owned().pull(*variable.state_, out);
}

// A dtype other than float32 that takes gradients: bfloat16. The values are pulled to the end of `out`.
[[gnu::noinline]] void Worker::Impl::pull_widened(VariableState& state, std::span<float> out) {
  state.require_gradient(out.size(), "pull");
  pull(state, out.last(state.elements));
  update::widen_in_place(out.data(), out.size());
}

// Not inlined: otherwise a pull of a scalar would have to save the registers that it uses.
[[gnu::noinline]] float Worker::Impl::pull_widened(VariableState& state) {
  float value = 0;
  pull_widened(state, {&value, 1});
  return value;
}

void Worker::pull(const Variable& variable, std::span<std::byte> out) {
  VariableState& state = *variable.state_;
  state.require_bytes(out.size(), "pull");
  update::fill_bytes(out, state.dtype, state.array_dtype, [&](std::span<float> floats) {
    if (state.is_scalar)
      floats[0] = pull(variable);
    else
      owned().pull(state, floats);
  });
}

float Worker::pull(const Variable& variable) {
  Impl& impl = owned();
  VariableState& state = *variable.state_;
  if (!state.has_size(1)) return impl.pull_widened(state);
  impl.note_pull();
  float value = 0;
  std::uint64_t retries = 0;
  if (state.is_scalar)
    state.pulled.front() = state.parts.front().inplace->pull_scalar(value);
  else
    retries = state.pull({&value, 1}, 0, impl.live.settings.lr, impl.threads);
  impl.count(Counter::kPulls).bump_relaxed(1);
  if (retries != 0) impl.count(Counter::kPullRetries).bump_relaxed(retries);
  return value;
}

void Worker::pull_average(const Variable& variable, std::span<float> out) {
  Impl& impl = owned();
  VariableState& state = *variable.state_;
  state.require_gradient(out.size(), "pull of the average");
  if (state.settings.ema == 0)
    throw Error(
        fmt::format("variable '{}' has no moving average: its job's optimizer keeps none (`ema`), or its update "
                    "rule is add",
                    state.name));
  const std::uint64_t retries =
      state.pull(out, update::slots_per_element(state.settings), impl.live.settings.lr, impl.threads);
  if (retries != 0) impl.count(Counter::kPullRetries).bump_relaxed(retries);
}

void WorkerCore::refuse_guest(const char* what) const {
  throw Error(fmt::format("{}: a guest of job '{}' makes no steps; use add_once()", what, job.job()),
              ErrorCode::kInvalidState);
}

void Worker::set_factors(const Variable& variable, float lr_scale, float regularize) {
  owned().refuse_recorded("set_factors()");
  VariableState& state = *variable.state_;
  const shm::Factors factors{.lr_scale = lr_scale, .regularize = regularize};
  shm::check_factors(state.name, factors);
  const update::Traits& traits = update::traits_of(state.settings.rule);
  if (traits.is_sum || traits.reads_by_rate)
    throw Error(fmt::format("variable '{}': its update rule is {}, whose factors are fixed", state.name, traits.name));
  // The first part last, which shows what is in force: who sets them again after a kill in between finds the old ones.
  for (std::size_t part = state.parts.size(); part-- > 0;)
    state.parts[part].record.factors.store_relaxed(shm::word_of(factors));
}

LiveSettings Worker::live() const { return shm::read_live(owned().job).settings; }

void Worker::wait_for_workers() {
  Impl& impl = owned();
  // Once a step is over, no worker is waited for any more.
  const auto to_come = [&] {
    return impl.job.steps_done() != impl.job.first_round(0) ? 0 : impl.user_barrier.still_to_join();
  };
  Wait wait(impl.options, std::nullopt, 1.0);
  const WaitMark mark(impl.entry, shm::WaitingFor::kBarrier, 0);
  shm::wait_for_fact(
      impl.job.state().activity, [&] { return to_come() == 0; },
      [&] {
        if (impl.job.is_over()) throw JobFinished(fmt::format("job {} was ended", impl.job.job()));
        static_cast<void>(wait.slice([&] {
          return fmt::format("worker {}: waiting for {} of {} workers to join", impl.rank, to_come(),
                             impl.config.workers);
        }));
      });
}

bool Worker::wait_to_be_last() {
  Impl& impl = owned();
  if (impl.options.guest) impl.refuse_guest("wait_to_be_last()");
  if (impl.open_pushes != 0)
    throw Error("wait_to_be_last() within a PushGroup: end the group first", ErrorCode::kInvalidState);
  std::vector<std::uint32_t> others;  // that are alive, by rank
  Wait wait(impl.options, std::nullopt, 1.0);
  const WaitMark mark(impl.entry, shm::WaitingFor::kOthersLeft, 0);
  shm::wait_for_fact(
      impl.job.state().activity,
      [&] {
        others.clear();
        for (std::uint32_t rank = 0; rank < impl.job.ranks(); ++rank)
          if (rank != impl.rank && shm::worker_state(impl.job, rank, impl.rank) == WorkerState::kAlive)
            others.push_back(rank);
        return others.empty() || others.front() < impl.rank;
      },
      [&] {
        static_cast<void>(wait.slice([&] {
          std::vector<std::string> texts;
          for (const std::uint32_t rank : others)
            texts.push_back(fmt::format("{}{}", rank,
                                        shm::is_stopped(impl.job.worker(rank).pid.load_relaxed()) ? " (stopped)" : ""));
          return fmt::format("worker {}: waiting for rank{} {} to leave", impl.rank, others.size() == 1 ? "" : "s",
                             fmt::join(texts, ", "));
        }));
      });
  return others.empty();
}

std::uint64_t Worker::step() { return owned().mode->step(); }

void Worker::barrier() {
  Impl& impl = owned();
  if (impl.options.guest) impl.refuse_guest("barrier()");
  if (impl.open_pushes != 0) throw Error("barrier() within a PushGroup: end the group first", ErrorCode::kInvalidState);
  const std::uint64_t round = impl.arrived_in.value_or(impl.user_barrier.round());
  if (!impl.arrived_in) impl.user_barrier.arrive(round);  // else the others have counted it
  impl.arrived_in = round;
  impl.user_barrier.wait(round, BarrierWait(impl, impl.user_barrier, round, false));
  impl.arrived_in.reset();
}

std::uint64_t Worker::global_step() const { return owned().job.steps_done(); }
std::uint64_t Worker::dropped_steps() const {
  return owned().count(Counter::kDropped).load_relaxed();  // relaxed: this rank's own
}
bool Worker::finished() const {
  const Impl& impl = owned();
  return impl.recording ? impl.recording->is_finished(impl.job.is_over()) : impl.job.is_over();
}

void Worker::report(double loss, std::uint64_t examples_done) {
  Impl& impl = owned();
  impl.count(Counter::kLossBits).store_relaxed(std::bit_cast<std::uint64_t>(loss));
  auto& examples = impl.count(Counter::kExamples);
  const std::uint64_t now = impl.examples_before + examples_done;
  // Both words stay the same from step to step, so that they match each other whenever they are read.
  const std::uint64_t step = impl.job.steps_done(), steps = step - std::exchange(impl.reported_step, step);
  if (steps != 0) {
    const std::uint64_t of_step = (now - examples.load_relaxed()) / steps;
    impl.entry.examples_offset.store_relaxed(now - step * of_step);
    impl.count(Counter::kStepExamples).store_relaxed(of_step);
  }
  examples.store_relaxed(now);
}

std::uint64_t Worker::examples_before() const {
  const Impl& impl = owned();
  const std::uint64_t before =
      impl.examples_before + shm::counter(impl.entry, Counter::kRestoredExamples).load_relaxed();
  return impl.recording ? impl.recording->examples_before(before) : before;
}

StalenessSummary Worker::staleness() const {
  shm::StalenessTotals totals;
  totals.add(owned().entry);
  return {totals.count, totals.mean(), totals.percentile(0.5), totals.percentile(0.99), totals.max};
}

void Worker::leave() noexcept {
  if (!impl_ || impl_->has_left || impl_->owner != getpid()) return;  // children of clone() are covered, too (locks.L2)
  impl_->has_left = true;
  try {
    if (!impl_->has_recovered) static_cast<void>(shm::recover_buffers(impl_->job, impl_->rank, impl_->job.locks()));
  } catch (const Error&) {  // the job is damaged: its next owner is told
  }
  if (impl_->recording) impl_->recording->leave();
  if (impl_->mode) impl_->mode->leave();
  shm::fault_point(shm::FaultPoint::kLeaveGradient);
  shm::leave(impl_->job, impl_->rank);
}

}  // namespace ps_shm
