// Bounded staleness: each worker's clock counts the steps it has done, and nobody begins a step while its clock is more
// than the bound ahead of the slowest one's. (Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel
// Parameter Server, 2013.)
//
// Clock word {epoch : 16, entering : 1, steps : 47}. It counts while its epoch is that of the settings and its rank has
// neither left nor died. Each change to mode ssp begins an epoch, so that clocks of an async past hold nobody up.
//   enter    ssp.C1 clock = {epoch, entering, smallest of the others}, release; fence (waiting.W1)
//            ssp.C2 the smallest again: clock raised to it, no longer entering, so that the newcomer holds nobody up
//                   for longer than this. A clock that is entering holds others up, but is nobody's smallest
//   advance  ssp.C3 clock + 1, release, pairs with ssp.C4; fence (waiting.W1, futex_announce)
//   pass     ssp.C4 every clock that counts, acquire; first deaths known from before, then those the kernel tells of
// Progress: enter, advance and one look are wait-free; passing waits for the slowest of the living, nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shm/job_segments.hpp"

namespace ps::shm {

class SspClock {
 public:
  SspClock(JobSegments& job, std::uint32_t rank) : job_(job), rank_(rank), known_dead_(job.ranks()) {}

  // ssp.C1, ssp.C2, unless this worker is in `epoch` already.
  void enter(std::uint32_t epoch) noexcept;

  // ssp.C3. Requires: entered.
  void advance() noexcept;

  // ssp.C4: how many steps this worker is ahead of the slowest other one; 0 where it is the slowest. `blockers`: the
  // ranks that keep it from being within `bound`; empty means that a step may begin.
  std::uint64_t lead(std::uint64_t bound, bool look_at_locks, std::vector<std::uint32_t>& blockers) noexcept;

  static std::uint32_t epoch_of(std::uint64_t clock) noexcept { return static_cast<std::uint32_t>(clock >> 48); }
  static std::uint64_t steps_of(std::uint64_t clock) noexcept { return clock & ((std::uint64_t{1} << 47) - 1); }
  static bool is_entering(std::uint64_t clock) noexcept { return (clock >> 47 & 1) != 0; }

 private:
  AtomicShm<std::uint64_t>& own() const noexcept { return job_.worker(rank_).clock; }
  // The word of `rank`, if it counts.
  std::optional<std::uint64_t> clock_of(std::uint32_t rank, std::uint32_t epoch, bool look_at_locks) noexcept;
  std::optional<std::uint64_t> smallest_other(std::uint32_t epoch) noexcept;

  JobSegments& job_;
  std::uint32_t rank_;
  std::vector<std::uint64_t> known_dead_;  // per rank: its last holder that is known to be dead
};

}  // namespace ps::shm
