// Modes async and ssp: a push applies at once, and a step only counts. With a staleness bound the worker then waits
// while it is too far ahead of the slowest worker (shm/steps/ssp_clock.hpp). A running job can change between the two
// modes.
#pragma once

#include "shm/steps/ssp_clock.hpp"
#include "worker/step_mode.hpp"

namespace ps_shm {

class FreeSteps final : public StepMode {
 public:
  explicit FreeSteps(WorkerCore& core) : StepMode(core), clock_(core.job, core.rank) {}

  void begin() override;
  void push(std::span<const Variable> variables, std::span<const GradientInput> gradients) override;
  void change(VariableState& state, update::Change how, std::span<const float> values,
              std::vector<std::uint64_t>& versions) override;
  std::optional<std::uint64_t> steady_step(bool look_at_locks) const noexcept override;
  std::uint64_t step() override;

 private:
  bool is_bounded() const noexcept;
  void wait_for_slowest();
  std::uint64_t update_step();

  shm::SspClock clock_;
};

}  // namespace ps_shm
