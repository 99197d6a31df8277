// Keys that somebody has chosen so that a table's work grows with their square: the job's secret hash spreads them as
// it spreads random ones.
#include <doctest/doctest.h>
#include <time.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ps_shm/checkpoint.hpp"
#include "ps_shm/job_view.hpp"
#include "shm/table/census.hpp"
#include "shm/table/table_segment.hpp"
#include "support/folder.hpp"
#include "support/table_job.hpp"
#include "update/hash.hpp"
#include "worker/row_sums.hpp"

using namespace ps_shm;
using namespace ps_shm::test;
using update::KeyHash;

namespace {

constexpr std::size_t kKeys = 4096;

constexpr std::uint64_t inverse_of(std::uint64_t odd) noexcept {  // Newton: each round doubles the correct bits
  std::uint64_t inverse = odd;
  for (int i = 0; i < 5; ++i) inverse *= 2 - odd * inverse;
  return inverse;
}

// The key of which that is the hash.
constexpr std::uint64_t key_of(const KeyHash& hash, std::uint64_t value) noexcept {
  value = (value ^ value >> 32) * inverse_of(hash.second);
  value = (value ^ value >> 32) * inverse_of(hash.first);
  return value ^ value >> 32;
}
static_assert(key_of(KeyHash::of_seed(7), KeyHash::of_seed(7)(123)) == 123);

Keys keys_by(const std::function<std::uint64_t(std::uint64_t)>& key) {
  Keys keys(kKeys);
  for (std::uint64_t i = 0; i < kKeys; ++i) keys[i] = key(i);
  return keys;
}

// Keys that have all lain behind one bucket, and what else somebody may try who does not know the secret.
std::vector<std::pair<std::string, Keys>> chosen_keys() {
  const auto neighbours_by = [](const KeyHash& hash) {
    return keys_by([&](std::uint64_t i) { return key_of(hash, (std::uint64_t{0x5555} << 48) + 2 * i); });
  };
  return {
      {"neighbours by a public hash", neighbours_by({0xd6e8feb86659fd93, 0xd6e8feb86659fd93})},
      {"neighbours by another job's hash", neighbours_by(KeyHash::of_seed(1000))},
      {"multiples of an inverse", keys_by([](std::uint64_t i) { return i * inverse_of(0x9e3779b97f4a7c15); })},
      {"other upper bits alone", keys_by([](std::uint64_t i) { return i << 52; })},
      {"upper bits that the first shift takes back", keys_by([](std::uint64_t i) { return i << 52 | i << 20; })},
      {"upper half alone", keys_by([](std::uint64_t i) { return i << 32; })},
      {"neighbours", keys_by([](std::uint64_t i) { return i; })},
  };
}

// How many rows all searches of a table pass.
std::uint64_t steps_in(const TableJob& job) {
  shm::AttachOutcome outcome;
  const auto attached = shm::JobSegments::try_attach(job.config.job, shm::Access::kReadOnly, outcome);
  REQUIRE(attached);
  const std::vector<shm::Segment> tables = shm::find_tables(*attached);
  REQUIRE(tables.size() == 1);
  shm::TableShm checked;
  REQUIRE(shm::is_table(tables[0], *attached, checked));
  const shm::PartCensus census = shm::take_census(tables[0], checked);
  CHECK(census.faults.empty());
  std::uint64_t steps = 0;
  for (std::uint64_t rows = 0; rows < census.chains.size(); ++rows)
    steps += census.chains[rows] * rows * (rows + 1) / 2;
  return steps;
}

std::uint64_t processor_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

// The least of some, of this thread alone. Keys that all meet took more than a hundred times as long as random ones.
std::uint64_t ns_to_sum(const KeyHash& hash, const Keys& keys) {
  RowSums sums(hash, 1, RowSums::kUnbounded);
  const Floats ones(keys.size(), 1.0F);
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (int i = 0; i < 20; ++i) {
    std::span<const std::uint64_t> ids = keys;
    std::span<const float> gradients = ones;
    const std::uint64_t began = processor_ns();
    CHECK_FALSE(sums.combine(ids, gradients));
    least = std::min(least, processor_ns() - began);
    REQUIRE(ids.size() == keys.size());
  }
  return least;
}

KeyHash hash_of(const std::string& job) {
  shm::AttachOutcome outcome;
  return shm::JobSegments::try_attach(job, shm::Access::kReadOnly, outcome)->key_hash();
}

JobConfig over_three_tasks(std::optional<std::uint64_t> seed) {
  JobConfig config = row_config(UpdateRule::kAdagrad);
  config.seed = seed;
  config.ps_tasks = 3, config.placement = Placement::kPartition;
  return config;
}

// The keys of all rows, in the order of a dump: part by part.
Keys order_of_rows(Table& table) {
  Keys keys;
  table.dump(0, [&](const TableRow& row) { keys.push_back(row.key); });
  return keys;
}

}  // namespace

TEST_CASE("key hash: searches for chosen keys pass no more rows than those for random ones") {
  const auto steps_for = [](const Keys& keys) {
    TableJob job(spec_of(100'000, 1));
    REQUIRE(job.push(keys, 1.0F).made == keys.size());
    return steps_in(job);
  };
  const std::uint64_t usual = steps_for(some_keys(kKeys));
  for (const auto& chosen : chosen_keys()) {
    CAPTURE(chosen.first);
    const Keys& keys = chosen.second;
    CHECK(steps_for(keys) < 3 * usual);
  }
}

TEST_CASE("key hash: chosen keys meet in no part of their hashes by which a table finds or divides them") {
  for (const auto& chosen : chosen_keys()) {
    CAPTURE(chosen.first);
    const Keys& keys = chosen.second;
    std::uint64_t met = 0, met_by_chance = 0, parts = 0;
    constexpr std::uint64_t kSeeds = 64;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      const KeyHash hash = KeyHash::of_seed(seed);
      std::vector<std::uint64_t> buckets(kKeys), in_part(64);
      for (const std::uint64_t key : keys) {
        met += buckets[hash(key) >> (64 - std::countr_zero(kKeys))]++;
        ++in_part[shm::part_of(hash, key, 64)];
      }
      met_by_chance += kKeys * (kKeys - 1) / 2 / kKeys;
      parts = std::max(parts, *std::max_element(in_part.begin(), in_part.end()));
    }
    CHECK(met < 3 * met_by_chance);
    CHECK(parts < 4 * kKeys / 64);
  }
}

TEST_CASE("key hash: the sums of one push of chosen keys take no more work than those of random ones") {
  const KeyHash hash = KeyHash::of_seed(1);
  const std::uint64_t usual = ns_to_sum(hash, some_keys(kKeys));
  for (const auto& chosen : chosen_keys()) {
    CAPTURE(chosen.first);
    const Keys& keys = chosen.second;
    CHECK(ns_to_sum(hash, keys) < 8 * usual);
  }
}

TEST_CASE("key hash: each job has its own, and a seed gives the same one again") {
  const auto hash_with = [](std::optional<std::uint64_t> seed) {
    const TableJob job(spec_of(1000), over_three_tasks(seed));
    const KeyHash hash = hash_of(job.config.job);
    CHECK(hash.is_bijection());
    CHECK(Worker(options(job.config)).config().seed == seed.value_or(1));
    return hash;
  };
  CHECK(hash_with({}) != hash_with({}));
  CHECK(hash_with({}) != hash_with(1));
  CHECK(hash_with(1) == hash_with(1));
  CHECK(hash_with(1) != hash_with(2));
}

TEST_CASE("key hash: a job with a seed has its rows in the same order and the same statistics when it is repeated") {
  const Keys keys = some_keys(5000);
  const auto run = [&](std::optional<std::uint64_t> seed) {
    TableSpec spec = spec_of(9000);
    spec.admit_after = 2;  // by counts that keys share by chance
    TableJob job(spec, over_three_tasks(seed));
    for (int i = 0; i < 3; ++i) job.push(Keys(keys.begin(), keys.end() - i * 1000), 1.0F);
    const TableStatistics now = job.table.statistics();
    return std::tuple(order_of_rows(job.table), now.rows, now.unadmitted, now.bytes);
  };
  CHECK(run(5) == run(5));
  CHECK(std::get<0>(run({})) != std::get<0>(run({})));
}

TEST_CASE("key hash: a job begins with the checkpoint of a job with another hash") {
  const Folder folder;
  TableJob job(spec_of(9000), over_three_tasks({}));
  const Keys keys = some_keys(3000);
  for (const float gradient : {1.0F, -0.5F}) job.push(keys, gradient);
  const Checkpoint saved(Checkpoint::save(JobView(job.config.job), folder.path()));
  for (const std::optional<std::uint64_t> seed : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(3)}) {
    JobConfig config = over_three_tasks(seed);
    config.restore = saved.folder();
    TableJob next(spec_of(9000), config);
    CHECK(hash_of(next.config.job) != hash_of(job.config.job));
    CHECK(order_of_rows(next.table) != order_of_rows(job.table));
    CHECK(next.pull(keys) == job.pull(keys));
    CHECK(next.push(keys, 0.0F).made == 0);
  }
}
