#include "shm/segment/counters.hpp"

#include <algorithm>
#include <bit>

namespace ps_shm::shm {
namespace {
constexpr std::uint32_t kExact = 64;
}

std::uint32_t staleness_bucket(std::uint64_t staleness) noexcept {
  if (staleness < kExact) return static_cast<std::uint32_t>(staleness);
  const std::uint32_t power = static_cast<std::uint32_t>(std::bit_width(staleness)) - 1;  // at least 6
  return std::min(kExact + power - 6, kStalenessBuckets - 1);
}

std::uint64_t staleness_of_bucket(std::uint32_t bucket) noexcept {
  return bucket < kExact ? bucket : std::uint64_t{1} << (bucket - kExact + 6);
}

void record_staleness(WorkerShm& worker, std::uint64_t staleness) noexcept {
  worker.staleness[staleness_bucket(staleness)].bump_relaxed(1);
  counter(worker, Counter::kStalenessSum).bump_relaxed(staleness);
  counter(worker, Counter::kStalenessCount).bump_relaxed(1);
  auto& max = counter(worker, Counter::kStalenessMax);
  if (staleness > max.load_relaxed()) max.store_relaxed(staleness);
}

void StalenessTotals::add(const WorkerShm& worker) noexcept {
  for (std::uint32_t bucket = 0; bucket < kStalenessBuckets; ++bucket)
    buckets[bucket] += worker.staleness[bucket].load_relaxed();
  sum += counter(worker, Counter::kStalenessSum);
  count += counter(worker, Counter::kStalenessCount);
  max = std::max(max, counter(worker, Counter::kStalenessMax));
}

std::uint64_t StalenessTotals::percentile(double share) const noexcept {
  std::uint64_t total = 0;
  for (std::uint64_t bucket : buckets) total += bucket;
  const double wanted = share * double(total);
  std::uint64_t seen = 0;
  for (std::uint32_t bucket = 0; bucket < kStalenessBuckets; ++bucket) {
    seen += buckets[bucket];
    if (seen != 0 && double(seen) >= wanted) return staleness_of_bucket(bucket);
  }
  return 0;
}

}  // namespace ps_shm::shm
