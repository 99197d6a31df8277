// A worker's state of a versioned or single-writer variable: its chunks are replaced as a whole, or changed where they lie
// (shm/slots/versioned_slot.hpp).
#pragma once

#include <span>
#include <vector>

#include "update/call.hpp"
#include "worker/variable_state.hpp"

namespace ps_shm {

struct PS_SHM_HIDDEN VersionedState : VariableState {
  VersionedState(shm::JobSegments& job, const shm::Directory& directory, const std::vector<std::uint32_t>& positions,
                 std::uint32_t rank, std::uint32_t threads)
      : VariableState(job, directory, positions, rank, threads) {}

  void set_values(std::span<const float> values, float lr, const FirstState& first) override;
  std::uint64_t pull(std::span<float> out, std::uint64_t array, float lr, Threads& threads) override;
  bool is_as_pulled() noexcept override;
  std::uint64_t pull_changed(std::span<float> out, std::vector<std::uint64_t>& since, Threads& threads,
                             std::uint64_t& retries) override;
  std::uint64_t push(const GradientInput& gradient, const PushContext& context, Threads& threads) override;
  std::uint64_t change(update::Change how, std::span<const float> values, const PushContext& context, Threads& threads,
                       std::vector<std::uint64_t>* versions) override;
  std::uint64_t change_once(const ChangeOnce& change, const PushContext& context, Threads& threads,
                            std::uint64_t ticket, shm::GuestBlocks& blocks) override;

  // Copies the values of the job's last snapshot, which is open. Requires: the snapshot contains the variable.
  void pull_image(std::span<float> out, std::uint64_t epoch);

  // Adds the gradient to the step's accumulators (reduce atomic), except to those that already sum a later step.
  void contribute(const GradientInput& gradient, const PushContext& context, Threads& threads);

 private:
  // kInPlace: chunks that may be changed where they lie are.
  template <bool kInPlace>
  std::uint64_t push_chunks(const GradientInput& gradient, const PushContext& context, Threads& threads);
  template <class Apply>
  void copy_in_blocks(std::uint64_t count, const float* out, float* copy, const Apply& apply) const;
  void apply_and_copy(const update::Call& call, std::uint64_t steps, std::uint64_t first, float* out, const float* in,
                      std::uint64_t stride, const float* g, std::uint64_t count, const float* following,
                      float* copy) const;
  std::uint64_t push_in_place(const GradientInput& gradient, const PushContext& context, Threads& threads);

  update::Call call_ = update::resolve(settings, 0.0F, 1.0F);  // for the rate and scale of the last push
};

// Requires: the variable is versioned.
inline VersionedState& versioned_state(VariableState& state) noexcept { return static_cast<VersionedState&>(state); }

}  // namespace ps_shm
