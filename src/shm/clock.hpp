// The clock that times in the segments are of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>

namespace ps::shm {

// CLOCK_MONOTONIC, the same in all processes of the box.
inline std::uint64_t now_ns() noexcept {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

// A length of time for that clock; at most a century: 64 bits of nanoseconds do not hold much more.
inline std::uint64_t to_ns(double seconds) noexcept { return static_cast<std::uint64_t>(std::min(seconds, 3e9) * 1e9); }

}  // namespace ps::shm
