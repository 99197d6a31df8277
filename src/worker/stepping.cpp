#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "ps/errors.hpp"
#include "shm/events.hpp"
#include "worker/impl.hpp"
#include "worker/sync_step.hpp"
#include "worker/waits.hpp"

namespace ps {

using shm::Counter;

void Worker::Impl::finish(shm::Barrier& barrier, std::uint64_t round, bool applies) {
  const double timeout = config.step_timeout_seconds;
  constexpr double kWarnSeconds = 10.0;
  std::optional<Wait> begun;  // most waits are over before they get to a sleep
  std::optional<WaitMark> mark;
  const auto apply = [&](const shm::Decision& decision) {
    if (!applies) return;
    if (is_summed())
      apply_summed_step(job, rank, round, decision, threads);
    else
      apply_ordered_step(job, rank, round, decision, gradients, threads);
  };
  const auto each_slice = [&](const std::vector<std::uint32_t>& missing) {
    if (!begun) {
      begun.emplace(options, timeout, kWarnSeconds);
      mark.emplace(entry, applies ? shm::WaitingFor::kStep : shm::WaitingFor::kBarrier, round);
    }
    Wait& wait = *begun;
    const auto whom = [&] {
      const std::uint32_t to_come = barrier.still_to_join();
      return to_come != 0 ? fmt::format("{} of {} workers to join", to_come, config.workers)
                          : fmt::format("rank{} {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
    };
    if (job.state().ended.load_acquire() != 0)
      throw JobFinished(fmt::format("job {} was ended at step {}", job.job(), job.global_step().load_acquire()));
    if (wait.slice([&] { return fmt::format("worker {}: waiting at step {} for {}", rank, round, whom()); }))
      return false;
    if (!applies || barrier.still_to_join() != 0)
      throw Error(
          fmt::format("step {} of job '{}' did not complete within {} s: still waiting for {}; end or continue "
                      "it, or raise --step-timeout",
                      round, job.job(), timeout, whom()));
    for (const std::uint32_t other : missing)
      shm::record_event(job, {.kind = shm::EventKind::kLeftOut, .rank = other, .step = round, .first = rank});
    wait.notice(
        fmt::format("worker {}: step {} goes on without {}, after {} s of waiting", rank, round, whom(), timeout));
    return true;
  };
  barrier.finish(round, apply, each_slice);
}

// A step went on without this worker's gradient.
void Worker::Impl::drop() {
  count(Counter::kDropped).bump_relaxed(1);
  shm::fault_point(shm::FaultPoint::kDropped);
  steps.come_back();
}

void Worker::Impl::finish_sync_step() {
  const std::uint64_t round = steps.round();
  if ((has_pushed && pushed_for != round) || job.is_finished()) {  // the step closed without it, before it was ready
    if (has_pushed) drop();
  } else {
    if (has_pushed && !is_summed()) write_norm();
    steps.arrive(round);
    finish(steps, round, true);
    if (has_pushed && !steps.was_in(round))
      drop();
    else
      shm::record_staleness(entry, 0);  // by construction
  }
  has_pushed = false;
  pulled_in.reset();
}

// Changes to the settings take effect here: at the end of a step, before the next one's pull.
void Worker::Impl::refresh_live() {
  if (shm::live_version(job) != live.version) live = shm::read_live(job);
}

void Worker::Impl::wait_for_slowest() {
  std::vector<std::uint32_t> blockers;
  std::uint64_t lead = 0;
  const auto may_begin = [&](bool look_at_locks) {
    refresh_live();
    if (live.settings.mode != Mode::kSsp) return true;
    clock.enter(live.clock_epoch);
    lead = clock.lead(live.settings.staleness, look_at_locks, blockers);
    return blockers.empty();
  };
  if (!may_begin(false)) {
    constexpr double kWarnSeconds = 10.0;
    Wait wait(options, config.step_timeout_seconds, kWarnSeconds);
    const WaitMark mark(entry, shm::WaitingFor::kClock, live.settings.staleness);
    shm::wait_for_fact(
        job.state().clocks, [&] { return may_begin(false) || job.is_over(); },
        [&] {
          if (may_begin(true)) return;
          const auto whom = [&] {
            return fmt::format("rank{} {}", blockers.size() == 1 ? "" : "s", fmt::join(blockers, ", "));
          };
          if (!wait.slice([&] { return fmt::format("worker {}: {} steps ahead, waiting for {}", rank, lead, whom()); }))
            throw Error(
                fmt::format("worker {} of job '{}' waited {} s to be within {} steps of {}; end or continue it, "
                            "or raise --staleness or --step-timeout",
                            rank, job.job(), config.step_timeout_seconds, live.settings.staleness, whom()));
        });
  }
  auto& most = count(Counter::kLeadMax);
  if (blockers.empty() && lead > most.load_relaxed()) most.store_relaxed(lead);
}

std::uint64_t Worker::step() {
  Impl& impl = *impl_;
  if (impl.is_sync()) {
    impl.finish_sync_step();
    impl.count(Counter::kSteps).bump_relaxed(1);
    impl.refresh_live();
    return impl.steps.round();
  }
  const std::uint64_t steps = impl.job.global_step().fetch_add_acq_rel(1) + 1;
  impl.count(Counter::kSteps).bump_relaxed(1);
  shm::fault_point(shm::FaultPoint::kStepCounted);
  if (impl.live.settings.mode == Mode::kSsp) impl.clock.advance();
  if (impl.job.is_finished()) {
    shm::futex_announce(impl.job.state().clocks);
    return steps;
  }
  impl.wait_for_slowest();
  return steps;
}

void Worker::barrier() {
  const std::uint64_t round = impl_->meetings.round();
  impl_->meetings.arrive(round);
  impl_->finish(impl_->meetings, round, false);
}

}  // namespace ps
