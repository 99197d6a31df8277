#include "worker/sync_steps.hpp"

#include <fmt/format.h>

#include <utility>

#include "ps_shm/errors.hpp"
#include "shm/base/clock.hpp"
#include "shm/steps/guest.hpp"
#include "update/rules.hpp"
#include "worker/barrier_wait.hpp"
#include "worker/versioned_state.hpp"

namespace ps_shm {

using shm::Counter;

namespace {

// Tells the caller, if it asked for that, how long each part of a step has taken.
class PartTimer {
 public:
  explicit PartTimer(const WorkerOptions& options) noexcept
      : on_part_(options.on_part), since_ns_(on_part_ ? shm::monotonic_ns() : 0) {}

  void end_part(const char* part) {
    if (!on_part_) [[likely]]
      return;
    const std::uint64_t begin_ns = std::exchange(since_ns_, shm::monotonic_ns());
    on_part_(part, begin_ns, since_ns_);
  }

 private:
  const decltype(WorkerOptions::on_part)& on_part_;
  std::uint64_t since_ns_;
};

}  // namespace

SyncSteps::SyncSteps(WorkerCore& core)
    : StepMode(core), barrier_(core.job, core.rank, 0), gradients_(core.job, core.rank), work_(core) {}

void SyncSteps::begin() {
  const std::uint64_t round = barrier_.round();
  if (barrier_.has_arrived(round)) finish(round);  // barrier.B4: its gradient counts; nothing of it is overwritten
  if (is_summed())
    core_.entry.barriers[0].changed.store_relaxed(0);  // (barrier.B13) discards what a predecessor has not published
  else
    gradients_.create_own();
}

void SyncSteps::note_pull() noexcept {
  if (!pulled_in_) pulled_in_ = barrier_.round();
}

void SyncSteps::check_push() const {
  if (arrived_in_)
    throw Error(
        fmt::format("push of worker {}: its step() has thrown after step {} had got its gradient; call step() again "
                    "to end that step",
                    core_.rank, *arrived_in_),
        ErrorCode::kInvalidState);
}

// Returns whether the step that the push belongs to is still under way.
bool SyncSteps::begin_push() {
  check_push();
  if (!has_pushed_) {
    pushed_for_ = pulled_in_.value_or(barrier_.round());  // the step whose values the gradient was computed from
    pushed_states_.clear();
  }
  has_pushed_ = true;
  return pushed_for_ == barrier_.round();
}

// Gradients, deltas and values of one variable would each need a place of their own (barrier.B13).
void SyncSteps::require_kind(const VariableState& state, update::Change how) const {
  const auto kind = [](update::Change one) { return std::min(one, update::Change::kAssign); };
  if (state.contributed != pushed_for_ + 1 || kind(state.contribution) == kind(how)) return;
  const auto said = [&](update::Change one) {
    return kind(one) == update::Change::kStep ? "pushed" : kind(one) == update::Change::kAdd ? "added to" : "assigned";
  };
  throw Error(fmt::format("variable '{}' was {} in this step and cannot be {} before step(): in sync mode a worker "
                          "may do only one of these "
                          "to a variable in a step",
                          state.name, said(state.contribution), said(how)),
              ErrorCode::kInvalidState);
}

void SyncSteps::note_kind(VariableState& state, update::Change how) const noexcept {
  state.contributed = pushed_for_ + 1, state.contribution = how;
}

void SyncSteps::change(VariableState& state, update::Change how, std::span<const float> values,
                       std::vector<std::uint64_t>&) {
  if (!begin_push()) return;  // too late: step() drops it
  require_kind(state, how);
  const bool resets = state.contributed == pushed_for_ + 1 && state.contribution == update::Change::kReset;
  if (resets) how = update::Change::kReset;  // as if done one after the other
  note_kind(state, how);
  if (!gradients_.own().is_mapped()) gradients_.create_own();
  for (const VariablePart& part : state.parts) gradients_.write(part, pushed_for_, how, values, core_.threads);
  if (is_summed()) core_.entry.barriers[0].changed.store_relaxed(pushed_for_ + 1);  // relaxed: barrier.A1 publishes it
}

std::uint64_t SyncSteps::change_once(std::uint64_t, std::span<const Variable> variables,
                                     std::span<const ChangeOnce> changes) {
  if (arrived_in_) static_cast<void>(SyncSteps::step());          // an earlier call was interrupted
  const std::uint64_t tried = shm::attempted_round(core_.entry);  // guest.G5; begin() has ended that step
  if (tried != 0 && barrier_.has_arrived(tried - 1) && barrier_.was_in(tried - 1)) return 0;
  std::vector<std::uint64_t> versions;
  for (;;) {
    if (core_.job.is_over())
      throw JobFinished(fmt::format("job {} ended before a step took the change of its guest", core_.job.job()));
    pulled_in_.reset();
    for (std::size_t i = 0; i < variables.size(); ++i)
      change(state_of(variables[i]), changes[i].how, changes[i].values, versions);
    const std::uint64_t dropped = core_.count(Counter::kDropped).load_relaxed();  // relaxed: this rank's own
    static_cast<void>(SyncSteps::step());
    if (core_.count(Counter::kDropped).load_relaxed() == dropped) return 0;
  }
}

void SyncSteps::push(std::span<const Variable> variables, std::span<const GradientInput> gradients) {
  const bool is_in_time = begin_push();
  for (const Variable& variable : variables) require_kind(state_of(variable), update::Change::kStep);
  if (!is_in_time) {  // too late: step() drops it
    for (const GradientInput& gradient : gradients) static_cast<void>(gradient.whole());
    return;
  }
  if (is_summed()) {
    PushContext context = core_.push_context(pushed_for_);
    const float clip = clip_scale_of(variables, gradients);
    for (std::size_t i = 0; i < variables.size(); ++i) {
      VariableState& state = state_of(variables[i]);
      context.scale = state.is_clipped() ? clip : 1.0F;
      versioned_state(state).contribute(gradients[i], context, core_.threads);
      note_kind(state, update::Change::kStep);
    }
    return;
  }
  for (std::size_t i = 0; i < variables.size(); ++i) {
    VariableState& state = state_of(variables[i]);
    for (const VariablePart& part : state.parts)
      gradients_.write(part, pushed_for_, update::Change::kStep, gradients[i], core_.threads);
    if (state.contributed != pushed_for_ + 1) pushed_states_.push_back(&state);
    note_kind(state, update::Change::kStep);
  }
}

// A step is complete once the next one is open (barrier.B6). Dead workers make no difference: the next helper applies
// the rest.
std::optional<std::uint64_t> SyncSteps::steady_step(bool) const noexcept {
  const std::uint64_t round = barrier_.round();
  return barrier_.is_decided(round) ? std::nullopt : std::optional(round);
}

// Publishes the norm of the gradients as they were written, so that several pushes of one variable count as their sum.
// It is summed in the order of the pushes and over whole variables, so that neither placement nor threads change its
// bits.
void SyncSteps::write_norm() {
  if (core_.live.settings.clip_norm == 0) return gradients_.write_norm(std::nullopt);
  double squares = 0;
  std::vector<float> whole;
  for (const VariableState* state : pushed_states_) {
    if (!state->is_clipped()) continue;
    if (state->parts.size() == 1) {
      const auto written = gradients_.written(state->parts.front().record);
      squares += update::squared_norm(written.data(), written.size());
      continue;
    }
    whole.clear();
    for (const VariablePart& part : state->parts) {
      const auto written = gradients_.written(part.record);
      whole.insert(whole.end(), written.begin(), written.end());
    }
    squares += update::squared_norm(whole.data(), whole.size());
  }
  gradients_.write_norm(squares);
}

void SyncSteps::finish(std::uint64_t round) {
  PartTimer timer(core_.options);
  const std::optional<shm::Decision> decision =
      barrier_.wait_decided(round, BarrierWait(core_, barrier_, round, true));  // barrier.A2 to barrier.A5
  timer.end_part("wait");
  if (!decision) return;
  if (is_summed())
    work_.apply_sums(round, *decision, gradients_);
  else
    work_.apply_gradients(round, *decision, gradients_);
  timer.end_part("apply");
  barrier_.open(round);  // barrier.A6
  timer.end_part("wait");
}

// A step went on without this worker's gradient.
void SyncSteps::drop() {
  core_.count(Counter::kDropped).bump_relaxed(1);
  shm::fault_point(shm::FaultPoint::kDropped);
  barrier_.come_back();
}

std::uint64_t SyncSteps::step() {
  const std::uint64_t round = arrived_in_.value_or(barrier_.round());
  bool is_late = false;
  if (!arrived_in_ && ((has_pushed_ && pushed_for_ != round) || core_.job.is_finished())) {
    is_late = has_pushed_;  // the step closed before this worker was ready
  } else {
    if (!arrived_in_) {  // else the previous step() threw: what it published stays as it is (barrier.B6)
      if (has_pushed_ && !is_summed()) write_norm();
      if (core_.options.guest) shm::note_attempt(core_.entry, round);
      barrier_.arrive(round);
      arrived_in_ = round;
    }
    finish(round);
    is_late = has_pushed_ && !barrier_.was_in(round);
    if (!is_late) shm::record_staleness(core_.entry, 0);  // by construction
  }
  arrived_in_.reset();
  has_pushed_ = false;
  pulled_in_.reset();
  if (is_late)
    drop();
  else
    core_.count(Counter::kSteps).bump_relaxed(1);
  core_.refresh_live();
  return barrier_.round();
}

void SyncSteps::leave() noexcept { gradients_.remove_own(); }

}  // namespace ps_shm
