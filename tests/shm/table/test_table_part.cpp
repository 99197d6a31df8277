// What a part of a table counts by chance: how often a row is used, and how often a key without a row was pushed; and
// which rows the clock sweep evicts while others use them.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
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
  explicit Part(const TableSpec& spec) : job_({.workers = 3, .seed = kRowSeed}) {
    auto parts = open_table(job_.segments, {spec, UpdateRule::kAdd, 0, false}, [this](std::uint32_t lane) {
      if (when_asked_for_life) when_asked_for_life();
      return lane == dead_ ? 0U : 1U;
    });
    part_ = std::move(parts.front());
    lane_ = part_->begin(0);
    other_ = part_->begin(1);
    third_ = part_->begin(2);
    lane_.random = other_.random = third_.random = 1;
  }

  std::function<void()> when_making;          // called when a row is made
  std::function<void()> when_asked_for_life;  // called when somebody asks whether a lane's owner is alive

  // Whether it has a row now.
  bool push(std::uint64_t key) { return push(lane_, key); }
  // As another worker that pushes at the same time.
  bool push_elsewhere(std::uint64_t key) { return push(other_, key); }
  // As a third worker that is killed in a push.
  void leave_pinned(std::uint64_t key) {
    float* row = nullptr;
    dead_ = 2;
    part_->pin(third_, part_->ask({&key, 1}), *this, false, &row);
  }
  // Two rows by one push.
  void push_both(std::uint64_t first, std::uint64_t second) {
    const std::uint64_t keys[] = {first, second};
    float* rows[2];
    part_->pin(lane_, part_->ask(keys), *this, false, rows);
    part_->unpin(lane_);
  }
  shm::TablePart& operator*() noexcept { return *part_; }
  shm::TableLane& lane() noexcept { return lane_; }
  void evict(std::uint64_t key) { REQUIRE(part_->evict(lane_, {&key, 1}) == 1); }
  std::uint64_t tend(std::uint64_t looks) { return part_->tend(lane_, looks); }
  std::uint64_t expire() { return tend(part_->rows_used()); }
  // nullptr: the key has no row.
  shm::AtomicShm<std::uint32_t>* used(std::uint64_t key) {
    shm::TableRowShm* const its = row(key);
    return its == nullptr ? nullptr : &its->used;
  }
  shm::TableRowShm* row(std::uint64_t key) {
    const shm::TableShm& record = part_->record();
    for (std::uint64_t number = 0; number < part_->rows_used(); ++number) {
      auto& row = *reinterpret_cast<shm::TableRowShm*>(part_->segment().data() + record.rows_offset +
                                                       number * record.row_bytes);
      const bool is_its =
          shm::state_of(row.word.load_acquire()) == shm::RowState::kLive && row.key.load_relaxed() == key;
      if (is_its) return &row;
    }
    return nullptr;
  }
  std::uint32_t frequency(std::uint64_t key) { return used(key)->load_relaxed() & shm::kMaxFrequency; }
  void set_frequency(std::uint64_t key, std::uint32_t frequency) {
    used(key)->store_relaxed(shm::make_used(used(key)->load_relaxed() >> 8, frequency));
  }

 private:
  void make(std::uint64_t, float* row) const noexcept override {
    *row = 0;
    if (when_making) when_making();
  }
  bool push(shm::TableLane& lane, std::uint64_t key) {
    float* row = nullptr;
    part_->pin(lane, part_->ask({&key, 1}), *this, false, &row);
    part_->unpin(lane);
    return row != nullptr;
  }

  ManualClock clock_;
  TestJob job_;
  std::unique_ptr<shm::TablePart> part_;
  shm::TableLane lane_, other_, third_;
  std::uint32_t dead_ = ~0U;  // a lane
};

// A clock that a test sets, of which somebody else makes use right behind each look at it.
class BusyClock final : public shm::Clock {
 public:
  explicit BusyClock(std::uint64_t quarters)
      : now_(quarters << shm::kTimeShift), before_(shm::g_clock.exchange(this)) {}
  ~BusyClock() { shm::g_clock = before_; }
  BusyClock(const BusyClock&) = delete;
  BusyClock& operator=(const BusyClock&) = delete;

  void advance(std::uint64_t quarters) { now_ += quarters << shm::kTimeShift; }
  std::function<void()> behind;

  std::uint64_t now_ns() noexcept override {
    const std::uint64_t now = now_;
    if (behind && !is_behind_) is_behind_ = true, behind(), is_behind_ = false;
    return now;
  }
  void sleep(std::uint64_t) noexcept override {}
  void wait(std::atomic<std::uint32_t>&, std::uint32_t, std::uint64_t) noexcept override {}

 private:
  std::uint64_t now_;
  bool is_behind_ = false;
  shm::Clock* const before_;
};

constexpr std::uint64_t kQuarters = std::uint64_t{1} << 24;  // after which the time of a use begins at 0 again
constexpr Evict kAllOrders[] = {Evict::kLru, Evict::kLfu, Evict::kAge};

TableSpec hour_spec(std::uint64_t max_rows, Evict order) {
  TableSpec spec = spec_of(max_rows, 1);
  spec.ttl = 3600, spec.evict = order;
  return spec;
}

TableSpec counting_spec(std::uint64_t max_rows) {
  TableSpec spec = spec_of(max_rows, 1);
  spec.evict = Evict::kLfu;
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
      const std::uint64_t bucket = shm::reversed(order_of(key)) % (std::uint64_t{1} << bits);
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
  // 32 rows are evicted of 256 that the sweep has passed, of which it takes a sixteenth from each eighth: about eight
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
  const Keys keys = some_keys(201, 3);  // of which no two share both of their counts
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

TEST_CASE("table part: rows that are used later than expire() notes the time are not too old") {
  for (const Evict order : kAllOrders)
    for (const std::uint64_t begin : {kQuarters / 2, kQuarters - 2, kQuarters - 1, kQuarters}) {
      Part part(hour_spec(2048, order));
      BusyClock clock(begin);
      const Keys keys = some_keys(1000);
      for (const std::uint64_t key : keys) part.push(key);
      std::uint64_t turns = 0;
      clock.behind = [&] {
        if (++turns > 20) return;  // a call that goes on ends, too, and the test fails
        clock.advance(1);
        for (const std::uint64_t key : keys) part.push_elsewhere(key);
        part.push_elsewhere(order == Evict::kAge ? 1000 + turns : keys[0]);  // the row that is made last
      };
      CHECK(part.expire() == 0);
      CHECK(turns <= 1 + 1024 / 256);  // it looks at the rows once, 256 at a time
      clock.behind = nullptr;
      for (const std::uint64_t key : keys) REQUIRE(part.used(key) != nullptr);
      // They do get too old, and a week without a use is no future.
      clock.advance(7 * 24 * 3600 * 4);
      CHECK(part.expire() >= 1000);
      CHECK(part.used(keys[0]) == nullptr);
    }
}

TEST_CASE("table part: rows that are used later than a push notes the time neither expire nor go first") {
  for (const Evict order : kAllOrders)
    for (const std::uint64_t begin : {kQuarters / 2, kQuarters - 1}) {
      Part part(hour_spec(512, order));
      BusyClock clock(begin);
      const Keys old = some_keys(256, 1), used = some_keys(256, 2);
      for (const std::uint64_t key : old) part.push(key);
      clock.advance(8);
      if (order != Evict::kAge)  // by which the time is that of the row's making
        for (const std::uint64_t key : used) part.push(key);
      std::uint64_t turns = 0;
      part.when_making = [&] {
        if (turns++ != 0) return;
        clock.advance(1);
        for (const std::uint64_t key : used) part.push_elsewhere(key);  // by kAge: they are made now
      };
      part.push_both(1, 2);
      part.when_making = nullptr;
      for (int more = 3; more < 60; ++more) part.push(std::uint64_t(more));
      for (const std::uint64_t key : used) REQUIRE(part.used(key) != nullptr);
    }
}

TEST_CASE("table part: a use never moves back, and a guest's is none") {
  Part part(hour_spec(64, Evict::kLru));
  BusyClock clock(kQuarters - 1);
  part.push(1);
  const std::uint32_t before = part.used(1)->load_relaxed();
  clock.behind = [&] { clock.advance(1), part.push_elsewhere(1); };
  part.push(1);  // with a time that was noted before the other push
  clock.behind = nullptr;
  const std::uint32_t later = part.used(1)->load_relaxed();
  CHECK((later >> 8) == (((before >> 8) + 1) & shm::kTimeMask));
  clock.advance(3);
  part.lane().is_guest = true;
  part.push(1);
  CHECK(part.used(1)->load_relaxed() == later);
  part.lane().is_guest = false;
  part.push(1);
  CHECK(part.used(1)->load_relaxed() != later);
}

TEST_CASE("table part: a lane remembers a bounded number of free rows") {
  constexpr std::uint64_t kRows = 200'000;
  Part part(hour_spec(kRows, Evict::kLru));
  const Keys keys = some_keys(kRows);
  for (const std::uint64_t key : keys) part.push_elsewhere(key);
  (*part).evict(part.lane(), keys);
  const std::size_t evicted = part.lane().free_rows.size();
  CHECK(evicted < kRows / 2);
  for (int sweep = 0; sweep < 20; ++sweep) part.expire();
  CHECK(part.lane().free_rows.size() == evicted);
  // The sweep finds what is not remembered: all rows can be used again.
  for (const std::uint64_t key : some_keys(kRows, 2)) REQUIRE(part.push(key));
  CHECK((*part).counted(shm::TableCounter::kEvicted) == kRows);
}

TEST_CASE("table part: a row that nobody pushes is evicted though others are made beside it") {
  for (const bool expires : {false, true}) {
    Part part(hour_spec(8192, Evict::kLru));
    BusyClock clock(1000);
    part.leave_pinned(1);
    constexpr std::uint64_t kLong = 4 * 7200;
    clock.advance(kLong);
    bool has_asked = false;
    part.when_asked_for_life = [&] {  // between the seal and the eviction
      if (std::exchange(has_asked, true)) return;
      clock.advance(-kLong);  // so that the other worker leaves the row
      for (const std::uint64_t key : some_keys(2000)) part.push_elsewhere(key);
      clock.advance(kLong);
    };
    const std::uint64_t key = 1;
    CHECK((expires ? part.expire() : (*part).evict(part.lane(), {&key, 1})) == 1);
    CHECK(has_asked);
    CHECK(part.used(1) == nullptr);
  }
}

TEST_CASE("table part: a row that its dead maker has linked only goes when it is too old") {
  Part part(hour_spec(64, Evict::kLru));
  BusyClock clock(1000);
  part.push(1);
  auto& word = part.row(1)->word;
  word.store_release(shm::next_word(word.load_acquire(), shm::RowState::kNew, shm::reference_of(word.load_acquire())));
  clock.advance(4 * 7200);
  CHECK(part.expire() == 1);
  CHECK_FALSE(part.row(1));
}
