// The epoch of snapshots (snapshot_point.hpp): in the snapshot word, and in the decisions of steps (barrier.hpp).
#pragma once

#include <cstdint>
#include <optional>

#include "shm/segment/job_segments.hpp"

namespace ps_shm::shm {

enum class SnapshotState : std::uint64_t { kOpen = 0, kDraining = 1, kDrainingToCopy = 2, kCopying = 3 };

constexpr std::uint64_t make_snapshot_word(std::uint64_t epoch, SnapshotState state) noexcept {
  return epoch << 2 | static_cast<std::uint64_t>(state);
}
constexpr std::uint64_t epoch_of(std::uint64_t word) noexcept { return word >> 2; }
constexpr SnapshotState snapshot_state(std::uint64_t word) noexcept { return static_cast<SnapshotState>(word & 3); }

inline std::uint64_t snapshot_epoch(const JobSegments& job) noexcept {
  return epoch_of(job.state().snapshot_point.word.load_acquire());  // (snapshot.C3)
}

// BarrierShm::decision.
constexpr std::uint64_t decided_rounds(std::uint64_t decision) noexcept { return decision >> 20; }
constexpr std::uint32_t proposer_of(std::uint64_t decision) noexcept { return decision & 0xff; }
inline constexpr std::uint64_t kDecisionEpoch = 0xfff;  // the low bits of the epoch, which a decision carries
constexpr std::uint64_t epoch_bits(std::uint64_t decision) noexcept { return decision >> 8 & kDecisionEpoch; }
constexpr std::uint64_t make_decision(std::uint64_t rounds, std::uint64_t epoch, std::uint32_t proposer) noexcept {
  return rounds << 20 | (epoch & kDecisionEpoch) << 8 | proposer;
}
static_assert(kMaxRanks <= 256, "a proposer has 8 bits");

// snapshot.C12: the epoch that the decision of `round` gets: that of the snapshot word if a snapshotter has ordered it
// for this round, otherwise that of `decision`, the one before. Lock-free.
std::uint64_t epoch_to_decide(const JobSegments& job, std::uint64_t round, std::uint64_t decision) noexcept;

// snapshot.C10: sets the epoch of the next training step, which is not decided yet, and of all later ones. Returns that
// step; nothing while the previous step is being applied. Lock-free.
std::optional<std::uint64_t> try_set_epoch(JobSegments& job, std::uint64_t epoch) noexcept;

}  // namespace ps_shm::shm
