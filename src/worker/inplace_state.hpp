// A worker's state of an in-place variable: its elements are updated where they lie (shm/slots/inplace_slot.hpp).
#pragma once

#include <span>
#include <vector>

#include "worker/variable_state.hpp"

namespace ps_shm {

struct PS_SHM_HIDDEN InplaceState final : VariableState {
  InplaceState(shm::JobSegments& job, const shm::Directory& directory, const std::vector<std::uint32_t>& positions,
               std::uint32_t rank, std::uint32_t threads);

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

  // The same as push() for a variable of one element. Requires: it is one.
  void push_scalar(float gradient, const PushContext& context) noexcept;

  // Counts a push of every block that a device has applied itself. Requires: not a scalar.
  void count_push() noexcept;

 private:
  void set_slots(const VariablePart& part, std::uint64_t from, std::uint64_t count,
                 const std::vector<std::vector<float>>& slots, std::byte* to) const;
  // The values of a hashed variable, reordered by parts, and those of another one as they are. Valid until the next call.
  GradientInput by_parts(const GradientInput& given);
  std::uint64_t push_block(Piece piece, const float* gradient, const PushContext& context) noexcept;
  std::uint64_t change_block(update::Change how, Piece piece, const float* values, const PushContext& context) noexcept;

  struct Rounded {
    shm::RoundStochastically rounding;
    std::uint64_t record;
    shm::BFloat16Row<shm::RoundStochastically> operator()(std::byte* place, std::uint64_t begin) const noexcept {
      return {place, {rounding.key, begin * record}};
    }
  };
  Rounded rounded(Piece piece) const noexcept;

  bool is_bfloat16_ = false;
  std::uint32_t rank_ = 0;
  std::vector<float> by_parts_;  // buffer of hashed variables
};

// Requires: the variable is in-place.
inline InplaceState& inplace_state(VariableState& state) noexcept { return static_cast<InplaceState&>(state); }

}  // namespace ps_shm
