// What a job's mode makes of a worker's pulls, pushes and steps: one object a worker, of the mode's family. Nothing else
// knows how a mode works. Code that needs only a property of a mode looks in config/modes.hpp.
//
// In-place variables change where they lie, in every mode that has them. So pushes of scalars and of rows do not come here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ps/variable.hpp"
#include "worker/core.hpp"
#include "worker/gradient_input.hpp"

namespace ps {

class GradientSegments;

class StepMode {
 public:
  // That of the job's mode. `core` outlives it.
  static std::unique_ptr<StepMode> make(WorkerCore& core);

  virtual ~StepMode() = default;
  StepMode(const StepMode&) = delete;
  StepMode& operator=(const StepMode&) = delete;

  // Finishes what a dead predecessor of the rank has left half done, and makes ready for the first step. Called once,
  // before anything else.
  virtual void begin() = 0;

  // A pull begins: what is pushed next may be computed of its values. Only of modes that want to know. Wait-free.
  virtual bool notes_pulls() const noexcept { return false; }
  virtual void note_pull() noexcept {}

  // Throws Error where nothing may be pushed before another step(). A caller that fills landing() asks first.
  virtual void check_push() const {}

  // Pushes a gradient of each variable, or keeps it for the end of the step.
  // Requires: as many gradients as variables, each of its variable's size.
  virtual void push(std::span<const Variable> variables, std::span<const GradientInput> gradients) = 0;

  // Changes a variable past its rule, or keeps the change for the end of the step. `versions`: of each chunk or block
  // behind it; left alone where it is kept. Requires: not Change::kStep, as many values as elements.
  virtual void change(VariableState& state, update::Change how, std::span<const float> values,
                      std::vector<std::uint64_t>& versions) = 0;

  // state.R2: the global step, if no push or step by others is half done. Then nothing that was pulled before, and whose
  // version is the same behind it, holds a part of one. `look_at_locks`: the dead are not waited for, which takes system
  // calls. Wait-free.
  virtual std::optional<std::uint64_t> steady_step(bool look_at_locks) const noexcept = 0;

  // Where the others read this worker's gradients, or nullptr. Pushing a gradient from there copies nothing.
  virtual GradientSegments* landing() noexcept { return nullptr; }

  // Ends the step; returns the global step after it. Waits as Worker::step() says.
  virtual std::uint64_t step() = 0;

  // The last thing before the rank is given back.
  virtual void leave() noexcept {}

 protected:
  explicit StepMode(WorkerCore& core) noexcept : core_(core) {}

  // What the gradients of one push are multiplied by, so that their global norm is within the limit: 1 where there is
  // none. Waits for those that are still arriving.
  float clip_scale_of(std::span<const Variable> variables, std::span<const GradientInput> gradients) const {
    return core_.live.settings.clip_norm > 0 ? scale_within_limit(variables, gradients) : 1.0F;
  }

  WorkerCore& core_;

 private:
  float scale_within_limit(std::span<const Variable> variables, std::span<const GradientInput> gradients) const;
};

}  // namespace ps
