// Bounded staleness: each worker's clock counts the steps it has done. A worker does not begin a step while its clock
// is ahead of the slowest one by more than the bound. (Ho et al., More Effective Distributed ML via a Stale Synchronous
// Parallel Parameter Server, 2013.)
//
// Clock word {epoch : 16, entering : 1, steps : 47}. It counts while its epoch is that of the settings and its rank has
// neither left nor died. Each change to mode ssp begins an epoch, so that clocks of an earlier async phase hold nobody
// up.
//   enter    ssp.C1 clock = {epoch, entering, smallest of the others}, release; fence (waiting.W1)
//            ssp.C2 the smallest again: the clock is raised to it, no longer entering, so that the newcomer holds
//                   nobody up for longer than this. A clock that is entering holds others up, but is never the smallest
//                   clock
//   advance  ssp.C3 clock + 1, release, pairs with ssp.C4; fence (waiting.W1, futex_announce)
//   pass     ssp.C4 every clock that counts, acquire; deaths that are already known first, then the locks
// Progress: enter, advance and a single check are wait-free; passing waits for the slowest live worker, nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shm/segment/job_segments.hpp"

namespace ps_shm::shm {

class SspClock {
 public:
  SspClock(JobSegments& job, std::uint32_t rank) : job_(job), rank_(rank), known_dead_(job.ranks()) {}

  // ssp.C1, ssp.C2, unless this worker has already entered `epoch`.
  void enter(std::uint32_t epoch) noexcept;

  // ssp.C3. Requires: entered.
  void advance() noexcept;

  // ssp.C4: how many steps this worker is ahead of the slowest other worker; 0 if it is the slowest. `blockers`: the
  // ranks that are more than `bound` steps behind; if empty, a step may begin.
  std::uint64_t skew(std::uint64_t bound, bool look_at_locks, std::vector<std::uint32_t>& blockers) noexcept;

  static std::uint32_t epoch_of(std::uint64_t clock) noexcept { return static_cast<std::uint32_t>(clock >> 48); }
  static std::uint64_t steps_of(std::uint64_t clock) noexcept { return clock & ((std::uint64_t{1} << 47) - 1); }
  static bool is_entering(std::uint64_t clock) noexcept { return (clock >> 47 & 1) != 0; }

 private:
  AtomicShm<std::uint64_t>& own() const noexcept { return job_.worker(rank_).clock; }
  // The clock word of `rank`, if it counts.
  std::optional<std::uint64_t> clock_of(std::uint32_t rank, std::uint32_t epoch, bool look_at_locks) noexcept;
  std::optional<std::uint64_t> smallest_other(std::uint32_t epoch) noexcept;

  JobSegments& job_;
  std::uint32_t rank_;
  std::vector<std::uint64_t> known_dead_;  // per rank: its last owner known to be dead
};

}  // namespace ps_shm::shm
