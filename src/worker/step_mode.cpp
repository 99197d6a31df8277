#include "worker/step_mode.hpp"

#include "config/modes.hpp"
#include "update/rules.hpp"
#include "worker/free_steps.hpp"
#include "worker/sync_steps.hpp"

namespace ps_shm {
namespace {

// A guest makes no steps of its own.
template <class Mode>
class OfGuest final : public Mode {
 public:
  using Mode::Mode;
  std::uint64_t step() override {
    const WorkerCore& core =
        this->core_;  // not of a dependent type, so that the compiler knows that it does not return
    core.refuse_guest("step()");
  }
};

}  // namespace

std::unique_ptr<StepMode> StepMode::make(WorkerCore& core) {
  switch (traits_of(core.config.mode).family) {
    case ModeFamily::kAtOnce:
      if (core.options.guest) return std::make_unique<OfGuest<FreeSteps>>(core);
      if (core.recording) return std::make_unique<RecordedSteps>(core);
      return std::make_unique<FreeSteps>(core);
    case ModeFamily::kTogether:
      break;
  }
  if (core.options.guest) return std::make_unique<OfGuest<SyncSteps>>(core);
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
