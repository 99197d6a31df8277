// A versioned variable of a worker that is recorded or replayed: its chunks are pulled and pushed one after the other,
// and each is reported to the recording.
#pragma once

#include <span>
#include <vector>

#include "worker/versioned_state.hpp"

namespace ps_shm {

struct PS_SHM_HIDDEN RecordedState final : VersionedState {
  RecordedState(shm::JobSegments& job, const shm::Directory& directory, const std::vector<std::uint32_t>& positions,
                std::uint32_t rank, std::uint32_t threads, record::Recording& recording, std::uint32_t number)
      : VersionedState(job, directory, positions, rank, threads), recording_(recording), number_(number) {
    recording_.declare(name, pieces, elements);
  }

  std::uint64_t pull(std::span<float> out, std::uint64_t array, float lr, Threads& threads) override;
  std::uint64_t push(const GradientInput& gradient, const PushContext& context, Threads& threads) override;
  std::uint64_t change(update::Change how, std::span<const float> values, const PushContext& context, Threads& threads,
                       std::vector<std::uint64_t>* versions) override;

  // Reports a push that the age limit drops (steps.D1).
  void drop(const GradientInput& gradient) {
    recording_.dropped(number_, check_of(gradient.whole(), update::Change::kStep));
  }

 private:
  // A checksum of the bits of what is pushed, and of the kind of push.
  static std::uint32_t check_of(std::span<const float> numbers, update::Change how) noexcept;

  std::uint64_t apply(update::Change how, std::span<const float> numbers, const PushContext& context,
                      shm::FreeBuffers& free_buffers, std::vector<std::uint64_t>* versions);

  record::Recording& recording_;
  const std::uint32_t number_;  // in the recording
};

// Requires: the worker is recorded or replayed.
inline RecordedState& recorded_state(VariableState& state) noexcept { return static_cast<RecordedState&>(state); }

}  // namespace ps_shm
