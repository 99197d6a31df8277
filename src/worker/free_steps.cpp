#include "worker/free_steps.hpp"

#include <fmt/format.h>

#include <vector>

#include "config/modes.hpp"
#include "ps_shm/errors.hpp"
#include "shm/base/clock.hpp"
#include "shm/base/fault_points.hpp"
#include "shm/base/futex.hpp"
#include "worker/inplace_state.hpp"
#include "worker/push_scope.hpp"
#include "worker/recorded_state.hpp"
#include "worker/waits.hpp"

namespace ps_shm {

using shm::Counter;

bool FreeSteps::is_bounded() const noexcept { return traits_of(core_.live.settings.mode).has_staleness_bound; }

void FreeSteps::refresh_live() noexcept {
  if (shm::live_version(core_.job) != core_.live.version) [[unlikely]]
    follow_live();
}

[[gnu::noinline]] void FreeSteps::follow_live() noexcept {
  const bool noted_pulls = core_.notes_pulls;
  core_.refresh_live();
  if (core_.notes_pulls != noted_pulls) age_ = {};
}

void FreeSteps::begin() {
  if (is_bounded() && !core_.options.guest) clock_.enter(core_.live.clock_epoch);
}

std::optional<std::uint64_t> FreeSteps::steady_step(bool look_at_locks) const noexcept {
  if (shm::is_any_pushing(core_.job, core_.rank, look_at_locks)) return std::nullopt;
  return core_.job.steps_done();
}

void FreeSteps::note_pull() noexcept { age_.note_pull(core_.job.steps_done()); }

bool FreeSteps::is_too_old() const noexcept {
  const std::uint64_t limit = core_.live.settings.stale_limit;
  return limit != 0 && age_.is_too_old(core_.job.steps_done(), limit);
}

bool FreeSteps::decide(bool drops) noexcept {
  age_.decide(drops);
  shm::fault_point(shm::FaultPoint::kAgeDecided);
  return drops;
}

// (steps.D1, steps.D2)
bool FreeSteps::drops_pushes() {
  if (!core_.notes_pulls) return false;
  return age_.is_decided() ? age_.drops() : decide(is_too_old());
}

void FreeSteps::push(std::span<const Variable> variables, std::span<const GradientInput> gradients) {
  float clip = 1.0F;
  if (core_.limits_pushes) [[unlikely]] {
    if (drops_pushes()) return drop(variables, gradients);
    for (const GradientInput& gradient : gradients)
      if (gradient.is_copied_back() && core_.notes_pulls) note_pull();
    clip = clip_scale_of(variables, gradients);
  }
  PushScope scope(core_);
  push_at(core_.job.steps_done(), variables, gradients, clip, scope);
}

// Waits for gradients that are still arriving, because their memory may be used again after a push. What is copied back
// is the current values, as after a push.
[[gnu::noinline]] void FreeSteps::drop(std::span<const Variable> variables, std::span<const GradientInput> gradients) {
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (!gradients[i].is_copied_back()) {
      static_cast<void>(gradients[i].whole());
      continue;
    }
    note_pull();
    VariableState& state = state_of(variables[i]);
    std::uint64_t retries = 0;
    static_cast<void>(
        state.pull_changed({gradients[i].out(), state.elements}, gradients[i].versions(), core_.threads, retries));
    if (retries != 0) core_.count(Counter::kPullRetries).bump_relaxed(retries);
  }
}

[[gnu::always_inline]] inline void FreeSteps::push_at(std::uint64_t step, std::span<const Variable> variables,
                                                      std::span<const GradientInput> gradients, float clip,
                                                      PushScope& scope) {
  PushContext context = core_.push_context(step);
  for (std::size_t i = 0; i < variables.size(); ++i) {
    VariableState& state = state_of(variables[i]);
    if (state.elements >= PushScope::kLongFloats) scope.take_time();
    if (gradients[i].is_added_by_device()) {
      static_cast<void>(gradients[i].whole());
      inplace_state(state).count_push();
    } else {
      context.scale = state.is_clipped() ? clip : 1.0F;
      state.follow(core_.live.settings);
      const std::uint64_t retries = state.push(gradients[i], context, core_.threads);
      if (retries != 0) core_.count(Counter::kPushRetries).bump_relaxed(retries);
    }
    core_.record_observed(state);
  }
}

void FreeSteps::change(VariableState& state, update::Change how, std::span<const float> values,
                       std::vector<std::uint64_t>& versions) {
  PushScope scope(core_);
  change_at(core_.job.steps_done(), state, how, values, versions, scope);
}

[[gnu::always_inline]] inline void FreeSteps::change_at(std::uint64_t step, VariableState& state, update::Change how,
                                                        std::span<const float> values,
                                                        std::vector<std::uint64_t>& versions, PushScope& scope) {
  if (state.elements >= PushScope::kLongFloats) scope.take_time();
  const PushContext context = core_.push_context(step);
  const std::uint64_t retries = state.change(how, values, context, core_.threads, &versions);
  if (retries != 0) core_.count(Counter::kPushRetries).bump_relaxed(retries);
  core_.record_observed(state);
}

std::uint64_t FreeSteps::change_once(std::uint64_t ticket, std::span<const Variable> variables,
                                     std::span<const ChangeOnce> changes) {
  PushScope scope(core_);
  const PushContext context = core_.push_context(core_.job.steps_done());
  shm::GuestBlocks blocks(core_.entry);
  std::uint64_t in_doubt = 0;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    VariableState& state = state_of(variables[i]);
    if (state.elements >= PushScope::kLongFloats) scope.take_time();
    in_doubt += state.change_once(changes[i], context, core_.threads, ticket, blocks);
  }
  return in_doubt;
}

void FreeSteps::wait_for_slowest() {
  if (core_.open_pushes != 0)
    throw Error("step() of mode ssp within a PushGroup: end the group first", ErrorCode::kInvalidState);
  std::vector<std::uint32_t> blockers;
  std::uint64_t skew = 0;
  const auto may_begin = [&](bool look_at_locks) {
    refresh_live();
    if (!is_bounded()) return true;
    clock_.enter(core_.live.clock_epoch);
    skew = clock_.skew(core_.live.settings.staleness, look_at_locks, blockers);
    return blockers.empty();
  };
  if (!may_begin(false)) {
    const std::uint64_t begin_ns = shm::monotonic_ns();
    constexpr double kWarnSeconds = 10.0;
    Wait wait(core_.options, core_.config.step_timeout, kWarnSeconds);
    const WaitMark mark(core_.entry, shm::WaitingFor::kClock, core_.live.settings.staleness);
    shm::wait_for_fact(
        core_.job.state().clocks, [&] { return may_begin(false) || core_.job.is_over(); },
        [&] {
          if (may_begin(true)) return;
          const auto whom = [&] {
            return fmt::format("rank{} {}", blockers.size() == 1 ? "" : "s", fmt::join(blockers, ", "));
          };
          if (!wait.slice(
                  [&] { return fmt::format("worker {}: {} steps ahead, waiting for {}", core_.rank, skew, whom()); }))
            throw Timeout(fmt::format(
                "worker {} of job '{}' waited {} s to be within {} steps of {}; end or continue it, "
                "or raise `staleness` or `step-timeout`",
                core_.rank, core_.job.job(), core_.config.step_timeout->count(), core_.live.settings.staleness,
                whom()));
        });
    if (core_.options.on_part) core_.options.on_part("wait", begin_ns, shm::monotonic_ns());
  }
  auto& most = core_.count(Counter::kMaxClockSkew);
  if (blockers.empty() && skew > most.load_relaxed()) most.store_relaxed(skew);
}

std::uint64_t FreeSteps::step() {
  if (is_dropped()) [[unlikely]]
    return end_dropped_step(true);
  return end_step(count_step(), true);
}

[[gnu::always_inline]] inline std::uint64_t FreeSteps::count_step() noexcept {
  return core_.job.global_step().fetch_add_acq_rel(1) + 1;  // (steps.T1) pairs with steps.T2
}

[[gnu::always_inline]] inline std::uint64_t FreeSteps::end_step(std::uint64_t steps, bool waits_for_slowest) {
  core_.count(Counter::kSteps).bump_relaxed(1);
  shm::fault_point(shm::FaultPoint::kStepCounted);
  return begin_next(steps, true, waits_for_slowest);
}

// (steps.D3)
[[gnu::noinline]] std::uint64_t FreeSteps::end_dropped_step(bool waits_for_slowest) {
  core_.count(Counter::kDropped).bump_relaxed(1);
  shm::fault_point(shm::FaultPoint::kAgeDropped);
  return begin_next(core_.job.steps_done(), false, waits_for_slowest);
}

[[gnu::always_inline]] inline std::uint64_t FreeSteps::begin_next(std::uint64_t steps, bool is_counted,
                                                                  bool waits_for_slowest) {
  if (core_.notes_pulls) [[unlikely]]
    age_.end_step(is_counted);
  if (is_bounded()) clock_.advance();
  if (core_.job.is_finished()) {
    shm::futex_announce(core_.job.state().clocks);
    return steps;
  }
  refresh_live();
  if (waits_for_slowest && is_bounded()) wait_for_slowest();
  return steps;
}

// The step by which the rate is scheduled. A replay takes it from the recording, together with the runtime settings with
// which the update was computed.
std::uint64_t RecordedSteps::update_step() {
  LiveSettings& live = core_.live.settings;
  const record::UpdateFacts facts =
      recording_.begin_update({core_.job.steps_done(), live.lr, live.clip_norm, live.momentum, live.beta1});
  live.lr = facts.rate;
  live.clip_norm = facts.clip;
  live.momentum = facts.momentum;
  live.beta1 = facts.beta1;
  return facts.step;
}

// Follows the recording in a replay, whatever the limit and the counter are.
bool RecordedSteps::drops_pushes() {
  return age_.is_decided() ? age_.drops() : decide(recording_.drops_pushes(is_too_old()));
}

void RecordedSteps::push(std::span<const Variable> variables, std::span<const GradientInput> gradients) {
  if (drops_pushes()) {
    for (std::size_t i = 0; i < variables.size(); ++i) recorded_state(state_of(variables[i])).drop(gradients[i]);
    return;
  }
  PushScope scope(core_);
  const std::uint64_t step = update_step();
  push_at(step, variables, gradients, clip_scale_of(variables, gradients), scope);
}

void RecordedSteps::change(VariableState& state, update::Change how, std::span<const float> values,
                           std::vector<std::uint64_t>& versions) {
  PushScope scope(core_);
  change_at(update_step(), state, how, values, versions, scope);
}

std::uint64_t RecordedSteps::step() {
  if (is_dropped()) return end_dropped_step(recording_.waits_for_slowest());
  recording_.before_step();
  const std::uint64_t steps = count_step();
  recording_.counted(steps);
  return end_step(steps, recording_.waits_for_slowest());
}

}  // namespace ps_shm
