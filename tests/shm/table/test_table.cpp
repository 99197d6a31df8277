// Tables by key: rows are made, found, updated by every rule, evicted, refused, and shared by workers.
#include <doctest/doctest.h>
#include <limits.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ps_shm/worker.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/segment/table_layout.hpp"
#include "shm/table/census.hpp"
#include "shm/table/table_segment.hpp"
#include "support/manual_clock.hpp"
#include "support/rows_job.hpp"
#include "support/rule_reference.hpp"
#include "support/table_job.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

TEST_CASE("table: a key without a row reads initial values, which depend on the seed and the key alone") {
  TableSpec spec = spec_of(1000);
  spec.initial_range = 0.25F;
  const Keys keys = some_keys(200);
  Floats first;
  {
    TableJob job(spec);
    first = job.pull(keys);
    CHECK(job.table.statistics().rows == 0);
    CHECK(job.table.statistics().misses == 200);
    CHECK(job.push(keys, 0.0F).updated == 200);  // makes the rows
    CHECK(job.pull(keys) == first);
    CHECK(job.table.statistics().rows == 200);
    CHECK(job.table.statistics().hits == 200);
  }
  CHECK(std::all_of(first.begin(), first.end(), [](float x) { return x >= -0.25F && x < 0.25F; }));
  CHECK(std::abs(std::accumulate(first.begin(), first.end(), 0.0F) / float(first.size())) < 0.05F);
  CHECK(std::set<float>(first.begin(), first.end()).size() > 590);
  Keys turned(keys.rbegin(), keys.rend());
  TableJob again(spec);
  again.push(turned, 0.0F);
  CHECK(again.pull(keys) == first);
  spec.seed = 1;
  CHECK(TableJob(spec).pull(keys) != first);
}

TEST_CASE("table: a pull that creates rows makes them as pushes would, once for each key") {
  for (const std::uint32_t tasks : {1, 3}) {
    CAPTURE(tasks);
    JobConfig config = row_config(UpdateRule::kAdd);
    config.ps_tasks = tasks, config.placement = Placement::kPartition;
    TableSpec spec = spec_of(1000);
    spec.admit_after = 2;
    TableJob job(spec, config);
    const Keys keys{5, 17, 5, 5, 9}, pushed{5, 17};
    Floats rows(keys.size() * spec.row_size);
    bool found[5];
    CHECK(job.push(pushed, 0.0F).unadmitted == 2);
    const Floats initial = job.pull(keys);
    CHECK(job.table.pull(keys, rows, found, true) == 0);  // which of them had a row
    CHECK(rows == initial);
    CHECK(job.table.statistics().rows == 2);  // 9 has come once, and 5 three times in one pull
    CHECK(job.table.statistics().unadmitted == 3);
    CHECK(job.table.pull(keys, rows, {}, true) == 4);
    CHECK(rows == initial);
    CHECK(job.table.pull(keys, rows, found) == 5);
    CHECK(job.push(keys, 1.0F).made == 0);
    CHECK(job.push({5, 6, 6}, 1.0F).made == 0);
    const PushedKeys again = job.push({5, 6}, 1.0F);
    CHECK(again.made == 1);
    CHECK(again.updated == 2);
  }
  TableSpec full = spec_of(64);
  full.evict = Evict::kNone;
  TableJob job(full);
  const Keys many = some_keys(100);
  Floats rows(many.size() * full.row_size);
  CHECK(job.table.pull(many, rows, {}, true) == 0);
  CHECK(job.table.statistics().rows == 64);
  CHECK(job.table.statistics().refused == 36);
}

TEST_CASE("table: it grows from nothing, and finds each of many rows whatever their keys are") {
  for (const std::uint64_t step : {std::uint64_t{1}, std::uint64_t{1} << 40, std::uint64_t{0x9e3779b97f4a7c15}}) {
    CAPTURE(step);
    TableJob job(spec_of(60'000, 1));
    const std::uint64_t empty = job.table.statistics().bytes;
    Keys keys(50'000);
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i * step;
    CHECK(job.push(keys, 1.0F).updated == keys.size());
    CHECK(job.push(keys, 1.0F).updated == keys.size());
    const TableStatistics now = job.table.statistics();
    CHECK(now.rows == keys.size());
    CHECK(now.made == keys.size());
    CHECK(now.evicted == 0);
    CHECK(empty < 200'000);
    CHECK(now.bytes > keys.size() * 48);
    std::unique_ptr<bool[]> found(new bool[keys.size()]);
    CHECK(job.table.contains(keys, {found.get(), keys.size()}) == keys.size());
    std::map<std::uint64_t, float> values;
    job.table.dump(0, [&](const TableRow& row) { values[row.key] = row.values[0]; });
    const Floats pulled = job.pull(keys);
    REQUIRE(values.size() == keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) REQUIRE(values[keys[i]] == pulled[i]);
    CHECK(!job.has(50'000 * step));
  }
}

TEST_CASE("table: rows link the buckets of a new half before they are searched for") {
  TableJob job(spec_of(4096, 1));
  Keys keys(1536 + 64);  // half of the rows that 2048 buckets wait for, and what a lane takes at once
  std::iota(keys.begin(), keys.end(), 1);
  for (std::size_t i = 0; i < keys.size(); i += 32)
    job.push({keys.begin() + long(i), keys.begin() + long(i + 32)}, 1.0F);
  shm::AttachOutcome outcome;
  const auto segments = shm::JobSegments::try_attach(job.config.job, shm::Access::kReadOnly, outcome);
  REQUIRE(segments);
  const std::vector<shm::Segment> tables = shm::find_tables(*segments);
  REQUIRE(tables.size() == 1);
  shm::TableShm checked = {};
  REQUIRE(shm::is_table(tables[0], *segments, checked));
  CHECK(shm::table_record(tables[0]).bits.hint() == 11);
  const shm::PartCensus census = shm::take_census(tables[0], checked);
  CHECK(census.faults.empty());
  CHECK(std::accumulate(census.chains.begin(), census.chains.end(), std::uint64_t{0}) == 2048);  // linked buckets
}

TEST_CASE("table: a full table evicts, and never has more rows than it may") {
  for (const Evict by : {Evict::kLru, Evict::kLfu, Evict::kAge}) {
    TableSpec spec = spec_of(512, 1);
    spec.evict = by;
    TableJob job(spec);
    const Keys keys = some_keys(20'000);
    CHECK(job.push(keys, 1.0F).updated == keys.size());
    const TableStatistics now = job.table.statistics();
    CHECK(now.made == keys.size());
    CHECK(now.rows == now.made - now.evicted);
    CHECK(now.rows <= 512);
    CHECK(now.rows > 256);
    std::uint64_t rows = 0;
    const Floats initial = [&] {
      TableJob fresh(spec);
      return fresh.pull(keys);
    }();
    std::map<std::uint64_t, float> expected;
    for (std::size_t i = 0; i < keys.size(); ++i) expected[keys[i]] = initial[i] + 1;
    job.table.dump(0, [&](const TableRow& row) {
      ++rows;
      REQUIRE(expected.count(row.key) == 1);
      REQUIRE(row.values[0] == expected[row.key]);
    });
    CHECK(rows == now.rows);
  }
}

TEST_CASE("table: what is used recently, used often, or young stays, as the table was told") {
  for (const Evict by : {Evict::kLru, Evict::kLfu, Evict::kAge}) {
    CAPTURE(int(by));
    test::ManualClock clock;
    TableSpec spec = spec_of(1024, 1);
    spec.evict = by;
    TableJob job(spec);
    const Keys hot = some_keys(100, 1), cold = some_keys(40'000, 2);
    job.push(hot, 1.0F);
    for (std::size_t at = 0; at < cold.size(); at += 400) {  // a hot key is pushed a hundred times, a cold one once
      clock.advance(1 * test::kSecond);
      job.push(hot, 1.0F);
      job.push(Keys(cold.begin() + std::ptrdiff_t(at), cold.begin() + std::ptrdiff_t(at) + 400), 1.0F);
    }
    std::unique_ptr<bool[]> found(new bool[hot.size()]);
    const std::uint64_t kept = job.table.contains(hot, {found.get(), hot.size()});
    const Floats values = job.pull(hot);  // of a row that was evicted, only the pushes since
    const auto never_evicted = std::count_if(values.begin(), values.end(), [](float x) { return x > 100; });
    if (by == Evict::kAge) {
      CHECK(never_evicted < 10);
    } else {
      CHECK(kept == hot.size());
      CHECK(never_evicted > 70);  // of the few rows of the first rounds, some may have been the worst of a sample
    }
  }
}

TEST_CASE("table: a full table that refuses drops new keys, counts them, and goes on with the others") {
  TableSpec spec = spec_of(256);
  spec.evict = Evict::kNone;
  TableJob job(spec);
  const Keys keys = some_keys(300);
  const PushedKeys first = job.push(keys, 1.0F);
  CHECK(first.updated == 256);
  CHECK(first.refused == 44);
  const PushedKeys second = job.push(keys, 1.0F);
  CHECK(second.updated == 256);
  CHECK(second.refused == 44);
  CHECK(job.table.statistics().refused == 88);
  CHECK(job.table.statistics().evicted == 0);
  CHECK(job.table.evict(Keys(keys.begin(), keys.begin() + 100)) == 100);  // makes room
  CHECK(job.push(Keys(keys.begin() + 256, keys.end()), 1.0F).updated == 44);
}

TEST_CASE("table: a key is admitted with its k-th push; what is pushed before is dropped and counted") {
  TableSpec spec = spec_of(4096, 1);
  spec.admit_after = 3;
  TableJob job(spec);
  const Keys keys = some_keys(20);
  const Floats initial = job.pull(keys);
  for (int push = 1; push <= 2; ++push) {
    const PushedKeys pushed = job.push(keys, 1.0F);
    CHECK(pushed.unadmitted == 20);
    CHECK(pushed.updated == 0);
    CHECK(job.pull(keys) == initial);
  }
  const PushedKeys third = job.push(keys, 1.0F);  // what has been seen may have been halved meanwhile
  CHECK(third.updated >= 15);
  CHECK(third.updated + third.unadmitted == 20);
  const Floats now = job.pull(keys);
  std::uint64_t changed = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    changed += now[i] == initial[i] + 1;
    CHECK((now[i] == initial[i] + 1 || now[i] == initial[i]));
  }
  CHECK(changed == third.updated);
  CHECK(job.table.statistics().unadmitted == 40 + third.unadmitted);
  // Assigned rows need no admission.
  const Keys others = some_keys(5, 9);
  CHECK(job.table.assign(others, Floats(5, 2.0F)).updated == 5);
  CHECK(job.pull(others) == Floats(5, 2.0F));
  // Keys that come once do not get in, though there are many.
  const Keys once = some_keys(4000, 3);
  CHECK(job.push(once, 1.0F).unadmitted > 3900);
}

TEST_CASE("table: rows that nobody has used for too long are gone") {
  test::ManualClock clock;
  TableSpec spec = spec_of(4096, 1);
  spec.ttl = 60;
  TableJob job(spec);
  const Keys old = some_keys(300, 1), used = some_keys(300, 2);
  job.push(old, 1.0F);
  job.push(used, 1.0F);
  clock.advance(40 * test::kSecond);
  job.push(used, 1.0F);
  CHECK(job.table.expire() == 0);
  clock.advance(40 * test::kSecond);
  CHECK(job.table.expire() == 300);
  CHECK(!job.has(old[0]));
  CHECK(job.has(used[0]));
  CHECK(job.table.statistics().expired == 300);
  clock.advance(100 * test::kSecond);
  for (const std::uint64_t key : some_keys(1000, 3)) job.push({key}, 1.0F);  // the sweep takes the others, too
  CHECK(job.table.statistics().expired > 500);
}

TEST_CASE("table: rows that are too old are gone while the table grows, too") {
  test::ManualClock clock;
  TableSpec spec = spec_of(100'000, 1);
  spec.ttl = 60;
  TableJob job(spec);
  for (const std::uint64_t key : some_keys(10'000)) {
    clock.advance(test::kSecond / 10);
    job.push({key}, 1.0F);
  }
  CHECK(job.table.statistics().expired > 7000);
  CHECK(job.table.statistics().rows < 3000);  // 600 are young enough
}

TEST_CASE("table: pulls count as uses where they shall") {
  for (const bool touches : {false, true}) {
    test::ManualClock clock;
    TableSpec spec = spec_of(4096, 1);
    spec.ttl = 60;
    spec.touch_on_pull = touches;
    TableJob job(spec);
    const Keys keys = some_keys(100);
    job.push(keys, 1.0F);
    clock.advance(40 * test::kSecond);
    job.pull(keys);
    clock.advance(40 * test::kSecond);
    CHECK(job.table.expire() == (touches ? 0 : 100));
  }
}

TEST_CASE("table: divided over the shards it is the same table") {
  for (const std::uint32_t threads : {1U, 2U}) {
    if (shm::kThreadSanitizer && threads > 1) continue;  // it does not know oneTBB's locks
    JobConfig config = row_config(UpdateRule::kAdd);
    config.ps_tasks = 3;
    config.placement = Placement::kPartition;
    config.threads = threads;
    TableJob parted(spec_of(30'000, 2), config), whole(spec_of(30'000, 2));
    CHECK(error_of([&] {
            parted.worker.table({.name = "small", .max_rows = 191});
          }).find("max_rows must be from 192 to 12884901882 for 3 parts, not 191") != std::string::npos);
    CHECK(parted.worker.table({.name = "small", .max_rows = 192}).name() == "small");
    std::mt19937_64 random(3);
    Keys keys = some_keys(9'000);
    keys.insert(keys.end(), keys.begin(), keys.begin() + 500);  // some twice
    Floats gradients(keys.size() * 2);
    for (float& g : gradients) g = float(random() % 64) / 32 - 1;
    CHECK(parted.table.push(keys, gradients).updated == 9'000);
    whole.table.push(keys, gradients);
    CHECK(parted.pull(keys) == whole.pull(keys));
    CHECK(parted.table.statistics().rows == 9'000);
    std::unique_ptr<bool[]> found(new bool[keys.size()]);
    keys[17] = 42;
    Floats out(keys.size() * 2);
    CHECK(parted.table.pull(keys, out, {found.get(), keys.size()}) == keys.size() - 1);
    CHECK(!found[17]);
    CHECK(parted.table.evict({keys.begin(), keys.begin() + 100}) == 99);
    std::uint64_t rows = 0;
    parted.table.dump(0, [&](const TableRow&) { ++rows; });
    CHECK(rows == 9'000 - 99);
  }
}

TEST_CASE("table: evicted and assigned rows, and what they begin with afterwards") {
  JobConfig config = row_config(UpdateRule::kMomentum);
  TableJob job(spec_of(1000, 2), config);
  const Keys keys = some_keys(64);
  const Floats initial = job.pull(keys);
  job.push(keys, 1.0F);
  CHECK(job.pull(keys) != initial);
  CHECK(job.table.evict(keys) == 64);
  CHECK(job.table.evict(keys) == 0);
  CHECK(job.pull(keys) == initial);
  CHECK(job.table.assign(keys, Floats(128, 3.0F)).updated == 64);
  CHECK(job.pull(keys) == Floats(128, 3.0F));
  job.push(keys, 1.0F);  // without what momentum had before
  const Floats once = job.pull(keys);
  CHECK(std::all_of(once.begin(), once.end(), [](float x) { return x == doctest::Approx(2.9F); }));
  CHECK(job.table.assign(Keys{7, 7}, Floats{1, 1, 2, 2}).updated == 2);
  CHECK(job.pull({7}) == Floats{2, 2});
}

TEST_CASE("table: the workers of a job share it, and a job that ends leaves nothing of it") {
  const JobConfig config = row_config(UpdateRule::kAdd);
  {
    TableJob job(spec_of(1000, 1), config);
    Worker second(options(config));
    Table same = second.table(spec_of(1000, 1));
    const Keys keys = some_keys(100);
    const Floats initial = job.pull(keys);
    job.push(keys, 1.0F);
    same.push(keys, Floats(100, 2.0F));
    const Floats now = job.pull(keys);
    for (std::size_t i = 0; i < keys.size(); ++i) CHECK(now[i] == initial[i] + 1 + 2);
    TableSpec other = spec_of(1000, 1);
    other.name = "others";
    Table another = second.table(other);
    CHECK(another.push(keys, Floats(100, 1.0F)).updated == 100);
    CHECK(job.pull(keys) == now);
    CHECK(job.worker.table(other).statistics().rows == 100);
    CHECK(shm::list_segments("ps_shm." + config.job + ".t").size() == 2);
  }
  CHECK(shm::list_segments("ps_shm." + config.job).empty());
}

namespace {

// Counts how often the segments of a job's tables are opened, by any process.
class Opens {
 public:
  explicit Opens(const std::string& job) : begin_("ps_shm." + job + ".t"), watch_(inotify_init1(IN_NONBLOCK)) {
    REQUIRE(watch_ >= 0);
    REQUIRE(inotify_add_watch(watch_, "/dev/shm", IN_OPEN) >= 0);
  }
  ~Opens() { ::close(watch_); }
  Opens(const Opens&) = delete;
  Opens& operator=(const Opens&) = delete;

  // Since the last call.
  int take() {
    int count = 0;
    alignas(inotify_event) char events[16 * (sizeof(inotify_event) + NAME_MAX + 1)];
    for (ssize_t size; (size = read(watch_, events, sizeof events)) > 0;)
      for (char* at = events; at < events + size;) {
        const auto& event = *reinterpret_cast<const inotify_event*>(at);
        REQUIRE((event.mask & IN_Q_OVERFLOW) == 0);
        if (event.len != 0 && std::string(event.name).starts_with(begin_)) ++count;
        at += sizeof(inotify_event) + event.len;
      }
    return count;
  }

 private:
  std::string begin_;
  int watch_;
};

}  // namespace

TEST_CASE("table: a worker opens each of the job's tables once, however many it declares") {
  constexpr int kTables = 20;
  TableJob job(spec_of(64));
  Worker other(options(job.config));
  Opens opens(job.config.job);
  for (Worker* const worker : {&job.worker, &other}) {
    int count = 0;
    for (int i = 0; i < kTables; ++i) {
      TableSpec spec = spec_of(64);
      spec.name = "t" + std::to_string(i);
      static_cast<void>(worker->table(spec));
      count += opens.take();
    }
    CHECK(count <= kTables + 1);
    if (worker == &other) CHECK(count >= kTables);
  }
}

TEST_CASE("table: what cannot be is refused with a reason") {
  TableJob job(spec_of(1000, 4));
  const auto refused = [&](auto change) {
    TableSpec spec = spec_of(1000, 4);
    change(spec);
    return error_of([&] { job.worker.table(spec); });
  };
  CHECK(refused([](TableSpec& s) { s.row_size = 5; }).find("already exists with rows of 4, but 5") !=
        std::string::npos);
  CHECK(refused([](TableSpec& s) { s.max_rows = 999; }).find("max_rows 1000, but 999") != std::string::npos);
  CHECK(refused([](TableSpec& s) { s.rule = UpdateRule::kSgd; }).find("update rule") != std::string::npos);
  CHECK(refused([](TableSpec& s) { s.evict = Evict::kNone; }).find("evict lru, but none") != std::string::npos);
  CHECK(refused([](TableSpec& s) { s.name = "n", s.evict = Evict(5); }).find("way to evict") != std::string::npos);
  CHECK(refused([](TableSpec& s) { s.seed = 3; }).find("seed 0, but 3") != std::string::npos);
  CHECK(refused([](TableSpec& s) { s.name = "a b"; }).find("not a valid variable name") != std::string::npos);
  CHECK(refused([](TableSpec& s) { s.name = "n", s.row_size = 0; }).find("a row has 1 to") != std::string::npos);
  CHECK(refused([](TableSpec& s) { s.name = "n", s.max_rows = 63; }).find("max_rows must be from 64") !=
        std::string::npos);
  for (const double ttl : {-1.0, 30.0 * 24 * 3600 + 1, double(NAN)})
    CHECK(refused([&](TableSpec& s) { s.name = "n", s.ttl = ttl; }).find("ttl must be from 0") != std::string::npos);
  CHECK(refused([](TableSpec& s) { s.name = "n", s.admit_after = 256; }).find("1 to 255") != std::string::npos);
  CHECK(refused([](TableSpec& s) { s.name = "n", s.initial_range = NAN; }).find("initial_range") != std::string::npos);
  CHECK(refused([](TableSpec& s) { s.name = "n", s.regularize = -1; }).find("factors") != std::string::npos);
  Floats three(3);
  CHECK(error_of([&] { job.table.pull(Keys{1}, three); }).find("a row has 4 floats") != std::string::npos);
  CHECK(error_of([&] { job.table.push(Keys{1}, three); }).find("a row has 4 floats") != std::string::npos);
  JobConfig sync = row_config(UpdateRule::kSgd);
  sync.layout = Layout::kVersioned;
  sync.mode = Mode::kSync;
  CHECK(error_of([&] { TableJob(spec_of(1000), sync); }).find("use mode async or ssp") != std::string::npos);
}
