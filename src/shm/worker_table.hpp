// The worker table: taking a rank, giving it back, and what has become of each rank's holder.
//
// Taking lock byte r is joining; only its holder writes entry r (L4). What a holder that is killed while joining leaves
// behind is overwritten by the next one: the order of the stores is in try_join.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>

#include "ps/job_view.hpp"
#include "shm/job_segments.hpp"

namespace ps::shm {

enum class JoinOutcome {
  kJoined,
  kRankTaken,   // the asked-for rank is alive
  kTableFull,   // no rank is free
  kJobRemoved,  // the name is gone or about to go: start over (N3)
};

// Takes `wanted`, or else a free rank: one that nobody has had yet, or else a dead one's, or else one that was left.
// Wait-free but for the system calls. `check` is called when the rank is held, before anything is written; where it
// throws, the rank is free again.
JoinOutcome try_join(JobSegments& job, std::optional<std::uint32_t> wanted, std::uint32_t& rank,
                     const std::function<void()>& check = {});

// Requires: the rank is held by this object, its threads are joined (L5).
void leave(JobSegments& job, std::uint32_t rank) noexcept;

// `own`: the rank held through `job`'s own descriptor, about which the locks can't tell (L1).
WorkerState worker_state(const JobSegments& job, std::uint32_t rank, std::optional<std::uint32_t> own = {}) noexcept;

// CLOCK_MONOTONIC, the same in all processes of the box.
std::uint64_t now_ns() noexcept;

// A length of time for that clock; at most a century: 64 bits of nanoseconds do not hold much more.
inline std::uint64_t to_ns(double seconds) noexcept { return static_cast<std::uint64_t>(std::min(seconds, 3e9) * 1e9); }

}  // namespace ps::shm
