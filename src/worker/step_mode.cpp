#include "worker/step_mode.hpp"

#include "config/modes.hpp"
#include "update/rules.hpp"
#include "worker/free_steps.hpp"
#include "worker/sync_steps.hpp"

namespace ps_shm {

std::unique_ptr<StepMode> StepMode::make(WorkerCore& core) {
  switch (traits_of(core.config.mode).family) {
    case ModeFamily::kAtOnce:
      if (core.recording) return std::make_unique<RecordedSteps>(core);
      return std::make_unique<FreeSteps>(core);
    case ModeFamily::kTogether:
      break;
  }
  return std::make_unique<SyncSteps>(core);
}

float StepMode::scale_within_limit(std::span<const Variable> variables,
                                   std::span<const GradientInput> gradients) const {
  double squares = 0;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (!state_of(variables[i]).is_clipped()) continue;
    const std::span<const float> gradient = gradients[i].whole();
    squares += update::squared_norm(gradient.data(), gradient.size());
  }
  return update::clip_scale(squares, core_.live.settings.clip_norm);
}

}  // namespace ps_shm
