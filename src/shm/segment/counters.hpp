// A worker's counters and its histogram of staleness, for diagnostics only. Written by the rank's owner, read by
// anybody.
#pragma once

#include <array>
#include <cstdint>

#include "shm/segment/layout.hpp"

namespace ps_shm::shm {

inline AtomicShm<std::uint64_t>& counter(WorkerShm& worker, Counter which) noexcept {
  return worker.counters[static_cast<std::uint32_t>(which)];
}
inline std::uint64_t counter(const WorkerShm& worker, Counter which) noexcept {
  return worker.counters[static_cast<std::uint32_t>(which)].load_relaxed();  // relaxed: diagnostic only
}

// Staleness 0 to 63 have a bucket each; above that there is one bucket for each power of two.
std::uint32_t staleness_bucket(std::uint64_t staleness) noexcept;
std::uint64_t staleness_of_bucket(std::uint32_t bucket) noexcept;  // the smallest of the bucket

// Adds one push of a chunk or block to the histogram. Called only by the rank's owner; wait-free.
void record_staleness(WorkerShm& worker, std::uint64_t staleness) noexcept;

struct StalenessTotals {
  std::array<std::uint64_t, kStalenessBuckets> buckets{};
  std::uint64_t sum = 0, count = 0, max = 0;

  void add(const WorkerShm& worker) noexcept;
  std::uint64_t percentile(double share) const noexcept;
  double mean() const noexcept { return count == 0 ? 0.0 : double(sum) / double(count); }
};

}  // namespace ps_shm::shm
