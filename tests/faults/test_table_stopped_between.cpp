// What other workers push and evict at each moment of a push or an eviction of a table by key, also while it grows. And
// what a death leaves.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "faults/strike.hpp"
#include "shm/base/fault_points.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/segment/names.hpp"
#include "shm/table/census.hpp"
#include "shm/table/table_segment.hpp"
#include "support/manual_clock.hpp"
#include "support/table_job.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

// The state of a table that has one part. `is_in_use`: somebody is in the midst of something.
struct TableNow {
  shm::PartCensus census;
  std::uint64_t rows = 0;  // that were taken
  std::uint32_t bits = 0;

  TableNow(const std::string& job, std::uint32_t number, bool is_in_use = false) {
    shm::AttachOutcome outcome;
    const auto segments = shm::JobSegments::try_attach(job, shm::Access::kReadOnly, outcome);
    REQUIRE(segments);
    shm::Segment segment;
    REQUIRE(segment.open(shm::table_name(job, number, 0), shm::Access::kReadOnly, segments->trust()) ==
            shm::AttachOutcome::kReady);
    shm::TableShm checked = {};
    REQUIRE(shm::is_table(segment, *segments, checked));
    rows = shm::table_record(segment).rows_next.load_acquire();
    bits = shm::table_record(segment).bits.hint();
    census = shm::take_census(segment, checked, {.share = 1, .is_in_use = is_in_use});
  }
  // Requires: nobody is in the midst of anything.
  void check_complete() const {
    REQUIRE(census.faults == std::vector<std::string>{});
    REQUIRE(census.linked + census.free == rows);
    REQUIRE(census.claimed + census.unlinked + census.dead == 0);
  }
};

// What was pushed to each key. A push adds a number of its own to each element of the key's row.
class PushedTo {
 public:
  static float gradient_of(std::uint64_t key) { return float(2 * (key % 1000) + 3); }

  void push(Table& table, const Keys& keys) {
    Floats gradients;
    for (const std::uint64_t key : keys) gradients.insert(gradients.end(), table.row_size(), gradient_of(key));
    for (const std::uint64_t key : keys) ++pushes_[key];
    if (table.push(keys, gradients).updated != keys.size()) has_all_ = false;
  }
  // Whether each push found or made its row: not if all rows are pinned or being made.
  bool has_all() const { return has_all_; }
  // Each row has pushes of its key alone: all of them, if no row was evicted.
  void check(Table& table, bool has_all) const {
    Floats row(table.row_size());
    for (const auto& [key, pushes] : pushes_) {
      table.pull({&key, 1}, row);
      for (const float value : row) {
        const float found = value / gradient_of(key);
        const bool is_right = has_all ? found == float(pushes) : found == std::floor(found) && found <= float(pushes);
        if (!is_right) FAIL("key " << key << " has " << value << ": " << pushes << " times " << gradient_of(key));
      }
    }
  }
  void forget() { pushes_.clear(), has_all_ = true; }

 private:
  std::map<std::uint64_t, int> pushes_;
  bool has_all_ = true;
};

// Keys that belong to that bucket of the first 512.
Keys keys_of_bucket(std::uint64_t bucket, std::size_t count) {
  Keys keys;
  for (std::uint64_t key = 1; keys.size() < count; ++key)
    if ((shm::reversed(order_of(key)) & 511) == bucket) keys.push_back(key);
  return keys;
}

}  // namespace

TEST_CASE(
    "table stopped between: a worker that makes rows at any moment of a push finds the table whole while it grows "
    "(table.G1 to "
    "table.G4, table.A1)") {
  TableSpec spec = spec_of(4096, 2);
  spec.initial_range = 0;
  // Bucket 3 is split from bucket 1. The other worker makes a row behind it and, by chance, between the two.
  const Keys of_three = keys_of_bucket(3, 2);
  Keys others = some_keys(100);
  others.push_back(of_three[1]);
  const Keys passing = some_keys(3, 3);        // whose rows, the first ones that it takes, are free again behind it
  for (const std::size_t before : {0, 512}) {  // with the latter, the next rows double the buckets
    CAPTURE(before);
    std::optional<TableJob> job;
    std::optional<Worker> second;
    std::uint32_t tables = 0, deepest = 0;
    std::uint64_t access = 1;
    for (bool goes_on = true; goes_on; access += access < 500 ? 1 : 41, ++tables) {
      CAPTURE(access);
      REQUIRE(access < 100'000);
      if (tables % 16 == 0) {
        tables = 0;
        second.reset(), job.reset();
        spec.name = "0";
        job.emplace(spec, row_config(UpdateRule::kAdd));
        second.emplace(options(job->config));
      }
      spec.name = std::to_string(tables);
      Table first_table = job->worker.table(spec), second_table = second->table(spec);
      PushedTo pushed;
      std::vector<std::string> faults;
      if (before != 0) pushed.push(first_table, some_keys(before, 2));
      const auto make_rows = [&] {
        second_table.push(passing, Floats(passing.size() * 2, 1.0F));
        pushed.push(second_table, others);
        second_table.evict(passing);
      };
      goes_on = run_with([&] { pushed.push(first_table, {of_three[0]}); }, access,
                         [&] {
                           faults = TableNow(job->config.job, tables, true).census.faults;
                           make_rows();
                         });
      if (!goes_on) make_rows();
      REQUIRE(faults == std::vector<std::string>{});
      REQUIRE(pushed.has_all());
      const TableNow state(job->config.job, tables);
      state.check_complete();
      REQUIRE(state.census.linked == before + others.size() + 1);
      deepest = std::max(deepest, state.bits);
      pushed.check(first_table, true);
      pushed.check(second_table, true);
    }
    CHECK(access > 200);
    CHECK(deepest == (before == 0 ? 9 : 10));
  }
}

TEST_CASE(
    "table stopped between: whatever another worker pushes, evicts or repairs at any moment of a push or an eviction, "
    "no row "
    "has two owners (table.I1, table.I4, table.I5, table.P1, table.E1)") {
  TableSpec spec = spec_of(64, 2);
  spec.initial_range = 0;
  TableJob job(spec, row_config(UpdateRule::kAdd));
  Worker second(options(job.config));
  Table other = second.table(spec);
  const Keys known = some_keys(5), made = some_keys(3, 2), more = some_keys(20, 3), many = some_keys(70, 4);
  PushedTo pushed;
  const std::function<void()> actions[] = {
      [&] { pushed.push(job.table, known); }, [&] { pushed.push(job.table, made); }, [&] { job.table.evict(known); },
      [&] { pushed.push(job.table, many); },  // more than there is room for
  };
  const std::function<void()> meanwhile[] = {
      [&] { other.expire(), pushed.push(other, more); },
      [&] { other.evict(known), pushed.push(other, more); },
      [&] { other.evict(made), pushed.push(other, known); },
      [&] { pushed.push(other, made), pushed.push(other, known); },
      [&] { pushed.push(other, many), pushed.push(other, more), pushed.push(other, many); },
  };
  for (const auto& action : actions)
    for (const auto& then : meanwhile) {
      CAPTURE(&action - actions);
      CAPTURE(&then - meanwhile);
      const TableStatistics before = job.table.statistics();
      std::uint64_t access = 1;
      for (bool goes_on = true; goes_on && access < 4000; access += &action == &actions[3] ? 31 : 1) {
        CAPTURE(access);
        for (const Keys* keys : {&known, &made, &more, &many}) job.table.evict(*keys);
        REQUIRE(job.table.statistics().rows == 0);
        pushed.forget();
        pushed.push(job.table, known);
        const std::uint64_t evicted = job.table.statistics().evicted;
        goes_on = run_with(action, access, then);
        TableNow(job.config.job, 0).check_complete();
        pushed.check(job.table, pushed.has_all() && job.table.statistics().evicted == evicted);
      }
      CHECK(access > 10);
      const TableStatistics now = job.table.statistics();
      const std::uint64_t spared = now.spared - before.spared, rescued = now.rescued - before.rescued;
      if (&action == &actions[0] && &then == &meanwhile[1]) CHECK(spared > 0);  // what is being pushed is to be evicted
      if (&action == &actions[2] && &then == &meanwhile[3]) CHECK(rescued > 0);  // what is being evicted is pushed
      if (&action == &actions[0] && &then == &meanwhile[3]) CHECK(spared + rescued == 0);  // nothing is evicted
    }
  CHECK(job.table.statistics().restarts > 0);
}

TEST_CASE(
    "table stopped between: whatever others do at any moment of evict() or expire(), a row that nobody pushes is "
    "evicted "
    "(table.E2, table.E5)") {
  ManualClock clock(ManualClock::Sleeps::kPass);
  TableSpec spec = spec_of(64, 1);
  spec.ttl = 3600;
  TableJob job(spec);
  Worker second(options(job.config));
  Table other = second.table(spec);
  Keys keys = keys_of_bucket(3, 3);
  std::ranges::sort(keys, {}, order_of);  // as in the list
  const std::uint64_t row = keys[0], between = keys[1], behind = keys[2];
  const std::function<void()> meanwhile[] = {
      [&] { other.push(Keys{between}, Floats{1}); },  // linked behind the row
      [&] { other.evict(Keys{behind}); },             // unlinked there
      [&] { other.dump(0, {}); },                     // makes a sealed row live
      [&] {                                           // seals it, too, and dies
        const pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
          shm::g_fault_hooks.reached = [](shm::FaultPoint point) {
            if (point == shm::FaultPoint::kRowSealed) raise(SIGKILL);
          };
          Worker worker(options(job.config));
          worker.table(spec).evict(Keys{row});
          _exit(0);
        }
        REQUIRE(waitpid(child, nullptr, 0) == child);
      },
  };
  for (const bool expires : {false, true})
    for (const auto& then : meanwhile) {
      CAPTURE(expires);
      CAPTURE(&then - meanwhile);
      std::uint64_t access = 1;
      for (bool goes_on = true; goes_on && access < 4000; ++access) {
        CAPTURE(access);
        job.table.evict(keys);
        job.push({row, behind}, 1.0F);
        if (expires) clock.advance(7200 * kSecond);
        const auto evict = [&] { expires ? job.table.expire() : job.table.evict(Keys{row}); };
        goes_on = run_with(evict, access, then);
        REQUIRE_FALSE(job.has(row));
      }
      CHECK(access > 10);
    }
}

TEST_CASE(
    "table stopped between: what a dead worker has pinned can be evicted, and what it was making is free, though its "
    "rank and "
    "its notes' rows are used again (table.P0, table.I7)") {
  TableSpec spec = spec_of(10'000, 2);
  JobConfig config = row_config(UpdateRule::kAdd);
  config.threads = 4;
  const Job job(config);
  Worker worker = job.join();  // has one thread: children are forked beside it
  Table table = worker.table(spec);
  constexpr std::uint32_t kRank = 5;
  const auto options = [&](std::uint32_t threads = 1) { return job.options(kRank, threads); };
  // Dies when so many threads are there.
  const auto die = [&](shm::FaultPoint where, const std::function<void(Table&)>& body, int threads = 1) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      Worker worker(options(std::uint32_t(threads)));
      Table table = worker.table(spec);
      static shm::FaultPoint point;
      static std::atomic<int> left;
      point = where, left = threads;
      shm::g_fault_hooks.reached = [](shm::FaultPoint reached) {
        if (reached != point) return;
        if (--left == 0) raise(SIGKILL);
        for (;;) pause();
      };
      body(table);
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
  };
  const Keys keys = some_keys(3);
  const auto push = [&](Table& table, std::uint64_t key) { table.push({&key, 1}, Floats(2, 1.0F)); };
  push(table, keys[0]);
  SUBCASE("a pin") {
    die(shm::FaultPoint::kRowPinned, [&](Table& table) { push(table, keys[0]); });
    Worker successor(options());
    static_cast<void>(successor.table(spec));  // begins with the lane
    CHECK(table.evict({keys.data(), 1}) == 1);
  }
  SUBCASE("a note") {
    die(shm::FaultPoint::kRowReady, [&](Table& table) { push(table, keys[1]); });
    CHECK(TableNow(job.config.job, 0).census.unlinked == 1);
    Worker successor(options());
    static_cast<void>(successor.table(spec));  // begins with the lane
    table.expire();
    TableNow(job.config.job, 0).check_complete();
  }
  // A successor with fewer threads, or one that does not open the table, does not clear what the dead have left.
  SUBCASE("pins of several threads") {
    for (const bool opens : {true, false}) {
      const Keys many = some_keys(8192, 2);
      table.push(many, Floats(2 * many.size(), 1.0F));
      die(
          shm::FaultPoint::kRowPinned, [&](Table& table) { table.push(many, Floats(2 * many.size(), 1.0F)); }, 4);
      Worker successor(options());
      if (opens) static_cast<void>(successor.table(spec));
      CHECK(table.evict(many) == many.size());
    }
  }
  SUBCASE("notes of several threads") {
    for (const bool opens : {true, false}) {
      const Keys many = some_keys(8192, 2);
      die(
          shm::FaultPoint::kRowClaimed, [&](Table& table) { table.push(many, Floats(2 * many.size(), 1.0F)); }, 4);
      CHECK(TableNow(job.config.job, 0).census.claimed == 4);
      Worker successor(options());
      if (opens) static_cast<void>(successor.table(spec));
      table.expire();
      TableNow(job.config.job, 0).check_complete();
    }
  }
  SUBCASE("a row that is linked, and not live yet") {
    die(shm::FaultPoint::kRowLinked, [&](Table& table) { push(table, keys[1]); });
    CHECK(table.evict({keys.data() + 1, 1}) == 1);
  }
  SUBCASE("the row that a living worker has made last") {
    die(shm::FaultPoint::kRowReady, [&](Table& table) {
      table.evict({keys.data(), 1});  // its row is the first one that is taken again
      push(table, keys[1]);
    });
    CHECK(TableNow(job.config.job, 0).census.unlinked == 1);
    table.expire();
    TableNow(job.config.job, 0).check_complete();
  }
  push(table, keys[2]);
  bool has = false;
  CHECK(table.contains({&keys[2], 1}, {&has, 1}) == 1);
}
