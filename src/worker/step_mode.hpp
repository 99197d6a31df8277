// The job's mode: what it makes of a worker's pulls, pushes and steps. Each worker has one object, of the class for the
// mode's family. No other code knows how a mode works; code that needs only a property of a mode uses config/modes.hpp.
//
// In-place variables are updated where they lie in every mode that has them. Pushes of scalars and rows do not use
// this class.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ps_shm/variable.hpp"
#include "worker/core.hpp"
#include "worker/gradient_input.hpp"

namespace ps_shm {

class GradientSegments;

class StepMode {
 public:
  // Creates the object for the job's mode. `core` must outlive it.
  static std::unique_ptr<StepMode> make(WorkerCore& core);

  virtual ~StepMode() = default;
  StepMode(const StepMode&) = delete;
  StepMode& operator=(const StepMode&) = delete;

  // Completes what a dead previous owner of the rank has left unfinished, and prepares the first step. Called once,
  // before all other functions.
  virtual void begin() = 0;

  // Called at the start of a pull if core.notes_pulls: gradients pushed later may be computed from its values.
  // Wait-free.
  virtual void note_pull() noexcept = 0;

  // Whether the pushes of this step are dropped because their gradient is too old (steps.D1). The first call in a step
  // decides. To be called if core.limits_pushes, before a push that does not use push().
  virtual bool drops_pushes() { return false; }

  // Throws Error if nothing may be pushed before another step(). To be called before landing() is filled.
  virtual void check_push() const {}

  // Pushes a gradient of each variable, or keeps it until the end of the step. Requires: as many gradients as
  // variables, each of its variable's size.
  virtual void push(std::span<const Variable> variables, std::span<const GradientInput> gradients) = 0;

  // Changes a variable bypassing the optimizer, or keeps the change until the end of the step. `versions`: receives the
  // version of each chunk or block after it; unchanged if the change is kept. Requires: not Change::kStep; as many
  // values as elements.
  virtual void change(VariableState& state, update::Change how, std::span<const float> values,
                      std::vector<std::uint64_t>& versions) = 0;

  // Changes the variables once for `ticket`, which entry.ticket is by now (guest.G3 to guest.G5). Returns the number of
  // elements in doubt. Requires: the worker is a guest.
  virtual std::uint64_t change_once(std::uint64_t ticket, std::span<const Variable> variables,
                                    std::span<const ChangeOnce> changes) = 0;

  // state.R2: returns the global step if no push or step of another worker is unfinished. A value that was pulled
  // before this call, and whose version is unchanged after it, then contains no part of an unfinished push or step.
  // `look_at_locks`: do not wait for dead workers; checking this takes system calls. Wait-free.
  virtual std::optional<std::uint64_t> steady_step(bool look_at_locks) const noexcept = 0;

  // This worker's gradient segment, which the other workers read, or nullptr. Pushing a gradient from there copies
  // nothing.
  virtual GradientSegments* landing() noexcept { return nullptr; }

  // Ends the step and returns the global step after it. Waits as described for Worker::step().
  virtual std::uint64_t step() = 0;

  // Called last, before the rank is released.
  virtual void leave() noexcept {}

 protected:
  explicit StepMode(WorkerCore& core) noexcept : core_(core) {}

  // The factor that limits the global norm of the gradients of one push; 1 if there is no limit. Waits for gradients
  // that are still arriving.
  float clip_scale_of(std::span<const Variable> variables, std::span<const GradientInput> gradients) const {
    return core_.live.settings.clip_norm > 0 ? scale_within_limit(variables, gradients) : 1.0F;
  }

  WorkerCore& core_;

 private:
  float scale_within_limit(std::span<const Variable> variables, std::span<const GradientInput> gradients) const;
};

}  // namespace ps_shm
