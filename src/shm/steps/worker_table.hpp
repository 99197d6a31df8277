// The worker table: taking a rank, giving it back, and the state of each rank's owner.
//
// Taking lock byte r is joining. Only its owner writes entry r (locks.L4). An owner that is killed while joining
// leaves an entry that the next owner overwrites; ranks.J1 to ranks.J3 are the order of the stores.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "ps_shm/types.hpp"
#include "shm/segment/job_segments.hpp"

namespace ps_shm::shm {

enum class JoinOutcome {
  kJoined,
  kRankTaken,   // the requested rank is alive
  kTableFull,   // no rank is free
  kJobRemoved,  // the name is gone, or about to go: start over (names.N3)
};

enum class Membership { kWorker, kGuest };

// Takes `wanted`, or a free rank if it is unset: preferably one never used, then a dead worker's, then one that was
// left, then one that a guest has left. Wait-free except for the system calls. `check` is called when the rank is held, before anything is written; if
// it throws, the rank is free again. A guest is not counted among the workers, and nobody waits for it (guest.G1).
JoinOutcome try_join(JobSegments& job, std::optional<std::uint32_t> wanted, std::uint32_t& rank,
                     const std::function<void()>& check = {}, Membership membership = Membership::kWorker);

// Requires: the rank is held by this object, and its threads are joined (locks.L5).
void leave(JobSegments& job, std::uint32_t rank) noexcept;

// `own`: the rank held through `job`'s own descriptor, for which the locks cannot tell (locks.L1). kNever if its last
// owner is a guest (guest.G1).
WorkerState worker_state(const JobSegments& job, std::uint32_t rank, std::optional<std::uint32_t> own = {}) noexcept;

}  // namespace ps_shm::shm
