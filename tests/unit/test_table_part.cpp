// What a part of a table counts by chance: how often a row is used, and how often a key without a row was pushed.
#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "shm/table/table_segment.hpp"
#include "support/manual_clock.hpp"
#include "support/table_job.hpp"
#include "support/test_job.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

// A table with one part. What it draws is always the same, and the clock stands still.
class Part : shm::RowMaker {
 public:
  explicit Part(const TableSpec& spec) {
    auto parts = open_table(job_.segments, {spec, UpdateRule::kAdd, 0, false}, [](std::uint32_t) { return 1U; });
    part_ = std::move(parts.front());
    lane_ = part_->begin(0);
    lane_.random = 1;
  }

  // Whether it has a row now.
  bool push(std::uint64_t key) {
    float* row = nullptr;
    part_->pin(lane_, part_->ask({&key, 1}), *this, false, &row);
    part_->unpin(lane_);
    return row != nullptr;
  }
  void evict(std::uint64_t key) { REQUIRE(part_->evict(lane_, {&key, 1}) == 1); }
  void tend(std::uint64_t looks) { part_->tend(lane_, looks); }
  // nullptr: the key has no row.
  shm::AtomicShm<std::uint32_t>* used(std::uint64_t key) {
    const shm::TableShm& record = part_->record();
    for (std::uint64_t number = 0; number < part_->rows_used(); ++number) {
      auto& row = *reinterpret_cast<shm::TableRowShm*>(part_->segment().data() + record.rows_offset +
                                                       number * record.row_bytes);
      const bool is_its =
          shm::state_of(row.word.load_acquire()) == shm::RowState::kLive && row.key.load_relaxed() == key;
      if (is_its) return &row.used;
    }
    return nullptr;
  }
  std::uint32_t frequency(std::uint64_t key) { return used(key)->load_relaxed() & shm::kMaxFrequency; }
  void set_frequency(std::uint64_t key, std::uint32_t frequency) {
    used(key)->store_relaxed(shm::make_used(used(key)->load_relaxed() >> 8, frequency));
  }

 private:
  void make(std::uint64_t, float* row) const noexcept override { *row = 0; }

  ManualClock clock_;
  TestJob job_;
  std::unique_ptr<shm::TablePart> part_;
  shm::TableLane lane_;
};

TableSpec counting_spec(std::uint64_t max_rows) {
  TableSpec spec = spec_of(max_rows, 1);
  spec.evict_by = EvictBy::kLeastFrequentlyUsed;
  return spec;
}

}  // namespace

TEST_CASE("table part: the first sixteen uses of a row are counted one by one, and later ones ever more rarely") {
  Part part(counting_spec(64));
  const Keys keys = some_keys(64);
  for (std::uint32_t push = 1; push <= 16; ++push)
    for (const std::uint64_t key : keys) {
      part.push(key);
      REQUIRE(part.frequency(key) == push);
    }
  // From 16 + n to 16 + n + 1 it takes 4 n + 4 uses on average: 840 for the next twenty.
  for (int push = 0; push < 840; ++push)
    for (const std::uint64_t key : keys) part.push(key);
  std::uint32_t sum = 0;
  for (const std::uint64_t key : keys) sum += part.frequency(key);
  CHECK(double(sum) / 64 == doctest::Approx(16 + 20).epsilon(0.05));
  // The count does not run into the time of the last use.
  part.set_frequency(keys[0], shm::kMaxFrequency - 1);
  const std::uint32_t time = part.used(keys[0])->load_relaxed() >> 8;
  for (int push = 0; push < 20'000; ++push) part.push(keys[0]);
  CHECK(part.used(keys[0])->load_relaxed() == shm::make_used(time, shm::kMaxFrequency));
}

TEST_CASE("table part: more than 2^31 rows and buckets") {
  TableJob job(spec_of(shm::kMaxTableRows, 1));  // the file is sparse
  shm::Segment segment;
  REQUIRE(segment.open(shm::table_name(job.config.job, 0, 0), shm::Access::kReadWrite) == shm::AttachOutcome::kReady);
  auto& record = *reinterpret_cast<shm::TableShm*>(segment.data() + shm::kTableOffset);
  REQUIRE(record.max_bits == 32);
  const auto* const buckets =
      reinterpret_cast<const shm::AtomicShm<std::uint64_t>*>(segment.data() + record.buckets_offset);
  for (const std::uint32_t bits : {9U, 31U, 32U}) {
    record.bits.store_relaxed(bits);  // as if so many rows were there
    const Keys keys = some_keys(100, bits);
    CHECK(job.push(keys, 1.0F).made == 100);
    CHECK(job.push(keys, 1.0F).made == 0);
    for (const std::uint64_t key : keys) {
      CHECK(job.has(key));
      const std::uint64_t bucket = shm::reversed(shm::order_of_row(key)) % (std::uint64_t{1} << bits);
      CHECK(shm::state_of(buckets[bucket].load_acquire()) == shm::RowState::kLive);  // it begins there
    }
    CHECK(job.table.evict(Keys(keys.begin(), keys.begin() + 50)) == 50);
    CHECK_FALSE(job.has(keys[0]));
    CHECK(job.has(keys[99]));
  }
}

TEST_CASE("table part: rows that were used often, and are no longer, fade while others are made, and go at last") {
  Part part(counting_spec(512));
  const Keys keys = some_keys(512), more = some_keys(45'000, 2);
  for (const std::uint64_t key : keys) part.push(key);
  const Keys hot(keys.begin(), keys.begin() + 100);
  for (const std::uint64_t key : hot) part.set_frequency(key, 160);
  part.tend(5'000);  // evicts nothing, and so leaves the counts
  for (const std::uint64_t key : hot) REQUIRE(part.frequency(key) == 160);
  // 32 rows are evicted of 256 that the hand has passed, of which it takes a sixteenth from each eighth: about eight
  // times from each row.
  for (std::size_t i = 0; i < 4096; ++i) part.push(more[i]);
  std::uint32_t sum = 0;
  for (const std::uint64_t key : hot) {
    REQUIRE(part.used(key) != nullptr);
    sum += part.frequency(key);
  }
  CHECK(double(sum) / 100 == doctest::Approx(95).epsilon(0.1));
  for (std::size_t i = 4096; i < more.size(); ++i) {
    part.push(more[i]);
    part.push(keys[0]);
  }
  std::uint32_t there = 0;
  for (const std::uint64_t key : hot) there += part.used(key) != nullptr;
  CHECK(there < 10);
  REQUIRE(part.used(keys[0]) != nullptr);  // it is used all the time
  CHECK(part.frequency(keys[0]) > 16);
}

TEST_CASE("table part: pushes of keys without rows count less while others get rows: half, once in max_rows rows") {
  TableSpec spec = spec_of(2048, 1);
  spec.admit_after = 9;
  Part part(spec);
  const Keys keys = some_keys(201);
  for (const std::uint64_t key : keys)
    for (int push = 0; push < 8; ++push) REQUIRE(!part.push(key));
  const std::uint64_t other = keys.back();  // one that gets its row again and again, so that no other counts change
  for (int made = 0; made < 2048;) {
    if (!part.push(other)) continue;
    ++made;
    part.evict(other);
  }
  // Of the two counts of a key, the smaller one is as it was for e^-2 of the keys, 14 %, and halved once for 41 %.
  std::vector<int> needed(10);  // [n]: keys that get rows with the n-th push now
  for (std::size_t i = 0; i < 200; ++i) {
    int pushes = 1;
    while (!part.push(keys[i])) ++pushes;
    REQUIRE(pushes <= 9);
    ++needed[std::size_t(pushes)];
  }
  CHECK(needed[1] > 10);
  CHECK(needed[1] < 50);
  CHECK(needed[5] > 50);
  CHECK(needed[5] < 120);
  CHECK(needed[1] + needed[5] + needed[7] + needed[8] + needed[9] == 200);
}
