// The histogram of staleness and its statistics.
#include <doctest/doctest.h>

#include <memory>

#include "shm/segment/counters.hpp"

using namespace ps_shm::shm;

TEST_CASE("staleness: 0 to 63 have a bucket each") {
  for (std::uint64_t staleness = 0; staleness < 64; ++staleness)
    CHECK(staleness_of_bucket(staleness_bucket(staleness)) == staleness);
}

TEST_CASE("staleness: above 63, a bucket begins at each power of two") {
  for (std::uint32_t power = 6; power < 37; ++power) {
    const std::uint64_t first = std::uint64_t{1} << power;
    CHECK(staleness_bucket(first) == staleness_bucket(first - 1) + 1);
    CHECK(staleness_bucket(first) == staleness_bucket(2 * first - 1));
    CHECK(staleness_of_bucket(staleness_bucket(first)) == first);
  }
}

TEST_CASE("staleness: the last bucket takes all larger values") {
  CHECK(staleness_bucket(~std::uint64_t{0}) == kStalenessBuckets - 1);
  CHECK(staleness_bucket(std::uint64_t{1} << 40) == kStalenessBuckets - 1);
}

TEST_CASE("staleness: with nothing recorded every figure is zero") {
  const StalenessTotals totals;
  CHECK(totals.percentile(0.5) == 0);
  CHECK(totals.mean() == 0.0);
}

TEST_CASE("staleness: percentiles, mean and maximum of all workers together") {
  const auto workers = std::make_unique<WorkerShm[]>(2);
  for (int i = 0; i < 90; ++i) record_staleness(workers[0], 1);
  for (int i = 0; i < 9; ++i) record_staleness(workers[1], 7);
  record_staleness(workers[1], 1000);
  StalenessTotals totals;
  totals.add(workers[0]);
  totals.add(workers[1]);
  CHECK(totals.count == 100);
  CHECK(totals.max == 1000);
  CHECK(totals.mean() == doctest::Approx((90 + 63 + 1000) / 100.0));
  CHECK(totals.percentile(0.0) == 1);
  CHECK(totals.percentile(0.9) == 1);
  CHECK(totals.percentile(0.91) == 7);
  CHECK(totals.percentile(0.99) == 7);
  CHECK(totals.percentile(1.0) == 512);  // the lower bound of the bucket
}

TEST_CASE("staleness: a maximum never decreases") {
  const auto worker = std::make_unique<WorkerShm>();
  record_staleness(*worker, 5);
  record_staleness(*worker, 2);
  CHECK(counter(*worker, Counter::kStalenessMax).load_relaxed() == 5);
}
