// Mode sync: gradients are kept until the step ends, and every worker helps to apply them (sync_work.hpp). A step ends
// for all workers at once, by barrier 0 (shm/steps/barrier.hpp). A gradient that comes too late for its step is
// dropped.
//
// With ordered reduction, gradients lie in this worker's gradient segment until the step is over. With reduce atomic
// they are added to the variables' accumulators as they come. Adds and assigns lie in the segment in either case; with
// reduce atomic a worker creates one when it first needs it (barrier.B13).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shm/steps/barrier.hpp"
#include "worker/gradients.hpp"
#include "worker/step_mode.hpp"
#include "worker/sync_work.hpp"

namespace ps_shm {

class SyncSteps : public StepMode {
 public:
  explicit SyncSteps(WorkerCore& core);

  void begin() override;
  void note_pull() noexcept override;
  void check_push() const override;
  void push(std::span<const Variable> variables, std::span<const GradientInput> gradients) override;
  void change(VariableState& state, update::Change how, std::span<const float> values,
              std::vector<std::uint64_t>& versions) override;
  std::uint64_t change_once(std::uint64_t ticket, std::span<const Variable> variables,
                            std::span<const ChangeOnce> changes) override;
  std::optional<std::uint64_t> steady_step(bool look_at_locks) const noexcept override;
  GradientSegments* landing() noexcept override { return is_summed() ? nullptr : &gradients_; }
  std::uint64_t step() override;
  void leave() noexcept override;

 private:
  bool is_summed() const noexcept { return core_.config.reduce == Reduce::kAtomic; }
  bool begin_push();
  void require_kind(const VariableState& state, update::Change how) const;
  void note_kind(VariableState& state, update::Change how) const noexcept;
  void write_norm();
  void finish(std::uint64_t round);
  void drop();

  shm::Barrier barrier_;
  GradientSegments gradients_;
  SyncWork work_;
  std::optional<std::uint64_t> pulled_in_;     // the step under way at the first pull since the last step()
  bool has_pushed_ = false;                    // since the last step()
  std::uint64_t pushed_for_ = 0;               // the step that the push belongs to
  std::optional<std::uint64_t> arrived_in_;    // the step of a step() that is in progress or has thrown
  std::vector<VariableState*> pushed_states_;  // with ordered reduction: what counts for the step's global norm
};

}  // namespace ps_shm
