// Hooks that report the progress of the loop from time to time: logging, timing, summaries.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "hooks/due.hpp"

namespace ps_shm {
namespace {

using hooks::seconds_now;

// The progress since the last report.
struct Since {
  std::uint64_t steps = 0, global_steps = 0;
  double seconds = 0.0, loss = 0.0;  // loss: the mean

  double rate(std::uint64_t count) const { return double(count) / std::max(seconds, 1e-9); }
};

class Periodic final : public Hook {
 public:
  using Tell = std::function<void(StepLoop& loop, const Since& since)>;

  Periodic(const Every& every, bool at_end, Tell tell)
      : every_(hooks::interval_of(every)), at_end_(at_end), tell_(std::move(tell)) {}

  void begin(StepLoop& loop) override {
    told_ = loop.last();
    told_at_ = seconds_now();
    losses_ = 0.0;
    due_.emplace(every_, told_at_, told_.global_step);
  }

  void after_step(StepLoop& loop, const StepReport& report) override {
    losses_ += report.loss;
    const double now = seconds_now();
    if (!due_->is_now(now, report.global_step)) return;
    due_->move_past(now, report.global_step);
    tell(loop, now);
  }

  void end(StepLoop& loop) override {
    if (at_end_ && loop.last().steps != told_.steps) tell(loop, seconds_now());
  }

 private:
  void tell(StepLoop& loop, double now) {
    const StepReport& last = loop.last();
    const std::uint64_t steps = last.steps - told_.steps;
    tell_(loop, {.steps = steps,
                 .global_steps = last.global_step - told_.global_step,
                 .seconds = now - told_at_,
                 .loss = losses_ / double(steps)});
    told_ = last;
    told_at_ = now;
    losses_ = 0.0;
  }

  const config::Interval every_;
  const bool at_end_;
  const Tell tell_;
  std::optional<config::Due> due_;
  StepReport told_;
  double told_at_ = 0.0, losses_ = 0.0;
};

}  // namespace

std::shared_ptr<Hook> logging(Every every, LogCallback log) {
  return std::make_shared<Periodic>(every, false, [log = std::move(log)](StepLoop& loop, const Since&) {
    hooks::tell(log, fmt::format("worker {}: step {} (global step {}), loss {:.4g}", loop.worker().rank(),
                                 loop.last().steps, loop.last().global_step, loop.last().loss));
  });
}

std::shared_ptr<Hook> timing(Every every, LogCallback log) {
  return std::make_shared<Periodic>(every, false, [log = std::move(log)](StepLoop& loop, const Since& since) {
    hooks::tell(log, fmt::format("worker {}: {:.1f} steps/s, {:.1f} of the job", loop.worker().rank(),
                                 since.rate(since.steps), since.rate(since.global_steps)));
  });
}

std::shared_ptr<Hook> summaries(Every every,
                                std::function<void(std::uint64_t global_step, std::span<const Scalar>)> write) {
  return std::make_shared<Periodic>(every, true, [write = std::move(write)](StepLoop& loop, const Since& since) {
    const StalenessSummary staleness = loop.worker().staleness();
    const std::array scalars = {Scalar{"loss", since.loss}, Scalar{"steps_per_second", since.rate(since.steps)},
                                Scalar{"job_steps_per_second", since.rate(since.global_steps)},
                                Scalar{"staleness_mean", staleness.mean},
                                Scalar{"staleness_p99", double(staleness.p99)}};
    write(loop.last().global_step, std::span(scalars).first(staleness.count != 0 ? 5 : 3));
  });
}

}  // namespace ps_shm
