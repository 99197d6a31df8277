// Modes async and ssp: a push applies at once, and a step only counts. With a staleness bound the worker then waits
// while it is too far ahead of the slowest worker (shm/steps/ssp_clock.hpp). A running job can change between the two
// modes.
#pragma once

#include "shm/steps/ssp_clock.hpp"
#include "worker/age_limit.hpp"
#include "worker/push_scope.hpp"
#include "worker/step_mode.hpp"

namespace ps_shm {

class FreeSteps : public StepMode {
 public:
  explicit FreeSteps(WorkerCore& core) : StepMode(core), clock_(core.job, core.rank) {}

  void begin() override;
  void note_pull() noexcept override;
  bool drops_pushes() override;
  void push(std::span<const Variable> variables, std::span<const GradientInput> gradients) override;
  void change(VariableState& state, update::Change how, std::span<const float> values,
              std::vector<std::uint64_t>& versions) override;
  std::uint64_t change_once(std::uint64_t ticket, std::span<const Variable> variables,
                            std::span<const ChangeOnce> changes) override;
  std::optional<std::uint64_t> steady_step(bool look_at_locks) const noexcept override;
  std::uint64_t step() override;

 protected:
  bool is_too_old() const noexcept;
  bool decide(bool drops) noexcept;
  bool is_dropped() const noexcept { return core_.notes_pulls && age_.drops(); }

  // The parts of push(), change() and step(). `step`: the step by which the rate is scheduled.
  inline void push_at(std::uint64_t step, std::span<const Variable> variables, std::span<const GradientInput> gradients,
                      float clip, PushScope& scope);
  inline void change_at(std::uint64_t step, VariableState& state, update::Change how, std::span<const float> values,
                        std::vector<std::uint64_t>& versions, PushScope& scope);
  inline std::uint64_t count_step() noexcept;
  inline std::uint64_t end_step(std::uint64_t steps, bool waits_for_slowest);
  std::uint64_t end_dropped_step(bool waits_for_slowest);

  AgeLimit age_;

 private:
  bool is_bounded() const noexcept;
  void refresh_live() noexcept;
  void follow_live() noexcept;
  void wait_for_slowest();
  inline std::uint64_t begin_next(std::uint64_t steps, bool is_counted, bool waits_for_slowest);
  void drop(std::span<const Variable> variables, std::span<const GradientInput> gradients);

  shm::SspClock clock_;
};

// The same for a worker that is recorded or replayed: each update and step is reported to the recording, and a replay
// takes from there what updates are computed from.
class RecordedSteps final : public FreeSteps {
 public:
  // Requires: core.recording.
  explicit RecordedSteps(WorkerCore& core) : FreeSteps(core), recording_(*core.recording) {}

  bool drops_pushes() override;
  void push(std::span<const Variable> variables, std::span<const GradientInput> gradients) override;
  void change(VariableState& state, update::Change how, std::span<const float> values,
              std::vector<std::uint64_t>& versions) override;
  std::uint64_t step() override;

 private:
  std::uint64_t update_step();

  record::Recording& recording_;
};

}  // namespace ps_shm
