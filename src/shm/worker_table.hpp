// The worker table: taking a rank, giving it back, and what has become of each rank's holder.
//
// Taking lock byte r is joining; only its holder writes entry r (locks.L4). A holder that is killed while joining
// leaves an entry that the next one overwrites; ranks.J1 to ranks.J3 are the order of the stores.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "ps/types.hpp"
#include "shm/job_segments.hpp"

namespace ps::shm {

enum class JoinOutcome {
  kJoined,
  kRankTaken,   // the asked-for rank is alive
  kTableFull,   // no rank is free
  kJobRemoved,  // the name is gone or about to go: start over (names.N3)
};

// Takes `wanted`, or else a free rank: one that nobody has had yet, or else a dead one's, or else one that was left.
// Wait-free but for the system calls. `check` is called when the rank is held, before anything is written; where it
// throws, the rank is free again.
JoinOutcome try_join(JobSegments& job, std::optional<std::uint32_t> wanted, std::uint32_t& rank,
                     const std::function<void()>& check = {});

// Requires: the rank is held by this object, its threads are joined (locks.L5).
void leave(JobSegments& job, std::uint32_t rank) noexcept;

// `own`: the rank held through `job`'s own descriptor, about which the locks can't tell (locks.L1).
WorkerState worker_state(const JobSegments& job, std::uint32_t rank, std::optional<std::uint32_t> own = {}) noexcept;

}  // namespace ps::shm
