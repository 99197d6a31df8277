// Tables by key as the view of a job shows them: rows, counts, and what is damaged.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "inspection/tables.hpp"
#include "ps_shm/job_view.hpp"
#include "shm/segment/names.hpp"
#include "shm/segment/table_layout.hpp"
#include "shm/table/census.hpp"
#include "shm/table/table_segment.hpp"
#include "support/sanitizers.hpp"
#include "support/table_job.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

TEST_CASE("table: the view of a job shows its tables, their rows, and what is used most") {
  JobConfig config = row_config(UpdateRule::kAdagrad);
  config.ps_tasks = 2;
  config.placement = Placement::kPartition;
  TableSpec spec = spec_of(1000);
  spec.evict = Evict::kLfu;
  spec.ttl = 3600, spec.seed = 5, spec.touch_on_pull = true;
  TableJob job(spec, config);
  const Keys keys = some_keys(300);
  job.push(keys, 1.0F);
  for (int i = 0; i < 9; ++i) job.push({keys[7]}, 1.0F);
  job.pull(some_keys(10, 2));
  JobView view(config.job);
  REQUIRE(view.tables().size() == 1);
  const TableInfo info = view.tables().front();
  CHECK(info.spec.name == "items");
  CHECK(info.spec.row_size == 3);
  CHECK(info.spec.max_rows == 1000);
  CHECK(info.spec.rule == UpdateRule::kAdagrad);
  CHECK(info.spec.evict == Evict::kLfu);
  CHECK(info.spec.ttl == doctest::Approx(3600));
  CHECK(info.spec.seed == 5);
  CHECK(info.spec.touch_on_pull);
  CHECK(info.parts == 2);
  CHECK(info.row_bytes == 32 + 32);  // three floats and their accumulators, up to a multiple of 16 bytes
  const TableStatistics own = job.table.statistics();
  CHECK(info.statistics.rows == 300);
  CHECK(info.statistics.made == own.made);
  CHECK(info.statistics.misses == 10);
  CHECK(info.statistics.bytes == own.bytes);
  CHECK(view.info().bytes.tables == own.bytes);

  const TableCensus rows = view.count_rows("items");
  CHECK(rows.faults.empty());
  CHECK(rows.with_keys == 300);
  CHECK(rows.sampled == 300 + rows.free);
  CHECK(rows.sealed + rows.being_made + rows.dead == 0);
  CHECK(rows.pinned == 0);
  CHECK(rows.has_living_workers);
  CHECK(rows.mean_chain > 0);
  CHECK(rows.longest_chain >= rows.p99_chain);
  CHECK(rows.p99_chain >= 1);
  REQUIRE(rows.hottest.size() == 10);
  CHECK(rows.hottest.front().key == keys[7]);
  CHECK(rows.hottest.front().frequency == 10);
  CHECK(rows.hottest.back().frequency == 1);
  const TableCensus sample = view.count_rows("items", 50);
  CHECK(sample.sampled < 100);
  CHECK(sample.with_keys > 20);

  std::map<std::uint64_t, Floats> read;
  for (const TableRow& row : view.table_rows("items")) read[row.key] = row.values;
  CHECK(read.size() == 300);
  const Floats pulled = job.pull(keys);
  for (std::size_t i = 0; i < keys.size(); ++i)
    CHECK(read[keys[i]] == Floats(pulled.begin() + 3 * i, pulled.begin() + 3 * i + 3));
  CHECK(view.table_rows("items", 7).size() == 7);
  const TableReader reader(config.job, "items");
  CHECK(reader.odd_rows(0).odd == 0);
  job.table.push({&keys[7], 1}, Floats{0, 0, NAN});
  const OddRows odd = reader.odd_rows(0);
  CHECK(odd.sampled == 300);
  CHECK(odd.share == 1);
  CHECK(odd.odd == 1);
  CHECK(odd.key == keys[7]);
  CHECK(odd.element == 2);
  CHECK_FALSE(std::isfinite(odd.value));
  const OddRows some = reader.odd_rows(3 * 50);
  CHECK(some.share > 1);
  CHECK(some.sampled > 20);
  CHECK(some.sampled < 60);
  CHECK(error_of([&] { view.count_rows("item"); }).find("there is no table 'item': job '") == 0);
  CHECK(error_of([&] { view.table_rows("item"); }).find("has items") != std::string::npos);
}

namespace {

// A table's segment, for damaging it.
struct OpenTable {
  shm::Segment segment;

  explicit OpenTable(const std::string& job) {
    REQUIRE(segment.open(shm::table_name(job, 0, 0), shm::Access::kReadWrite) == shm::AttachOutcome::kReady);
  }
  shm::TableShm& record() { return *reinterpret_cast<shm::TableShm*>(segment.data() + shm::kTableOffset); }
  shm::TableRowShm& row(std::uint64_t number) {
    return *reinterpret_cast<shm::TableRowShm*>(segment.data() + record().rows_offset + number * record().row_bytes);
  }
  shm::AtomicShm<std::uint64_t>& bucket(std::uint64_t number) {
    return reinterpret_cast<shm::AtomicShm<std::uint64_t>*>(segment.data() + record().buckets_offset)[number];
  }
  // Two rows of which one follows the other.
  std::pair<std::uint64_t, std::uint64_t> neighbours() {
    for (std::uint64_t number = 0; number < record().rows_next.load_acquire(); ++number) {
      const std::uint64_t word = row(number).word.load_acquire(), next = shm::reference_of(word);
      if (shm::state_of(word) == shm::RowState::kLive && next < shm::kEndOfList) return {number, next};
    }
    FAIL("each row is alone");
    return {};
  }
};

void change(shm::AtomicShm<std::uint64_t>& word, shm::RowState state, std::uint64_t reference) {
  word.store_release(shm::next_word(word.load_acquire(), state, reference));
}

}  // namespace

TEST_CASE("table: the view counts rows by their states, also those that a killed worker has left so") {
  TableJob job(spec_of(1000, 1));
  job.push(some_keys(300), 1.0F);  // of the first 320 rows
  OpenTable table(job.config.job);
  const auto set = [&](std::uint64_t row, shm::RowState state) {
    change(table.row(row).word, state, shm::reference_of(table.row(row).word.load_acquire()));
  };
  const JobView view(job.config.job);
  const auto check = [&](std::uint64_t with_keys, std::uint64_t sealed, std::uint64_t being_made, std::uint64_t dead) {
    const TableCensus rows = view.count_rows("items");
    CHECK(rows.faults.empty());
    CHECK(rows.with_keys == with_keys);
    CHECK(rows.sealed == sealed);
    CHECK(rows.being_made == being_made);
    CHECK(rows.dead == dead);
    CHECK(rows.free == 320 - with_keys - being_made - dead);
    CHECK(rows.sampled == 320);
  };
  check(300, 0, 0, 0);
  for (const std::uint64_t row : {7, 8, 9}) set(row, shm::RowState::kSealed);
  check(300, 3, 0, 0);
  for (const std::uint64_t row : {10, 11}) set(row, shm::RowState::kDead);
  check(298, 3, 0, 2);
  change(table.row(310).word, shm::RowState::kFree, 1);  // of the first lane
  change(table.row(311).word, shm::RowState::kNew, shm::kEndOfList);
  check(298, 3, 2, 2);
  job.table.expire();  // looks at each row
  check(298, 3, 0, 0);
  job.push(some_keys(300), 1.0F);
  check(300, 0, 0, 0);
}

namespace {

struct Damage {
  const char* told;                       // by the view
  std::optional<bool> is_told_by_worker;  // who searches there gets an Error; unset: few keys are searched there
  std::function<void(OpenTable&)> make;   // changes words
};
const std::vector<Damage> kDamages = {
    {"is not in order", true,
     [](OpenTable& table) {
       const auto [first, second] = table.neighbours();
       change(table.row(second).word, shm::RowState::kLive, first);
     }},
    {"is not in order", true,
     [](OpenTable& table) {
       const auto [first, second] = table.neighbours();
       change(table.row(second).word, shm::RowState::kLive, second);
     }},
    {"is not in order", true,
     [](OpenTable& table) {
       change(table.row(table.neighbours().second).word, shm::RowState::kLive, shm::kBucketKind);
     }},
    {"the list leads to row 4294967294, which there is not", true,
     [](OpenTable& table) { change(table.row(table.neighbours().second).word, shm::RowState::kLive, 0xfffffffe); }},
    {"the list leads to bucket 4294967295, which there is not", true,
     [](OpenTable& table) {
       change(table.row(table.neighbours().second).word, shm::RowState::kLive, shm::kBucketKind | shm::kEndOfList);
     }},
    {"is linked and free", true,
     [](OpenTable& table) { change(table.row(table.neighbours().second).word, shm::RowState::kFree, 0); }},
    {"is linked and in no state that there is", true,
     [](OpenTable& table) {
       auto& word = table.row(table.neighbours().second).word;
       change(word, static_cast<shm::RowState>(6), shm::reference_of(word.load_acquire()));
     }},
    {"is live and in no chain", false,
     [](OpenTable& table) {
       const auto [first, second] = table.neighbours();
       change(table.row(first).word, shm::RowState::kLive, shm::reference_of(table.row(second).word.load_acquire()));
     }},
    {"rows are in use, and there is memory for 0", false,
     [](OpenTable& table) { table.record().rows_backed.store_release(0); }},
    {"the list has no beginning", {}, [](OpenTable& table) { table.bucket(0).store_release(0); }},
};

}  // namespace

TEST_CASE("table: a damaged list is told by the view, and by a worker that meets it; neither goes on for ever") {
  for (std::size_t number = 0; number < kDamages.size(); ++number) {
    CAPTURE(number);
    const Damage& damage = kDamages[number];
    TableJob job(spec_of(3000, 1));
    const Keys keys = some_keys(2000);
    job.push(keys, 1.0F);
    const JobView view(job.config.job);
    REQUIRE(view.count_rows("items").faults.empty());
    OpenTable table(job.config.job);
    damage.make(table);
    const TableCensus rows = view.count_rows("items");
    REQUIRE(!rows.faults.empty());
    CHECK(rows.faults.size() <= 10);
    CHECK_MESSAGE(std::any_of(rows.faults.begin(), rows.faults.end(),
                              [&](const std::string& fault) { return fault.find(damage.told) != std::string::npos; }),
                  rows.faults.front());
    CHECK(view.count_rows("items", 100).faults.size() <= 10);
    CHECK(view.table_rows("items").size() <= 2000);
    const Keys others = some_keys(100000, 3);  // are searched everywhere
    bool is_told = false;
    for (const Keys& some : {keys, others}) {
      const std::string error = error_of([&] { job.pull(some); });
      if (error != "none") CHECK(error.find("is damaged: its list leads to") != std::string::npos);
      is_told = is_told || error != "none";
    }
    CHECK(is_told == damage.is_told_by_worker.value_or(is_told));
  }
}

TEST_CASE("table: of a job without workers the view also tells what could come of their work otherwise") {
  const JobConfig config = row_config(UpdateRule::kAdd);
  Server server(config);
  OpenTable table = [&] {
    Worker worker(options(config));
    const Keys keys = some_keys(2000);
    worker.table(spec_of(3000, 1)).push(keys, Floats(2000, 1.0F));
    return OpenTable(config.job);
  }();
  const JobView view(config.job);
  TableCensus rows = view.count_rows("items");
  CHECK(!rows.has_living_workers);
  CHECK(rows.faults.empty());
  // Leads past a bucket, to the only row behind it.
  for (std::uint64_t number = 0; number < 2000; ++number) {
    const std::uint64_t word = table.row(number).word.load_acquire(), next = shm::reference_of(word);
    if ((next & shm::kBucketKind) == 0 || shm::state_of(word) != shm::RowState::kLive) continue;
    const std::uint64_t behind = shm::reference_of(table.bucket(next & 0xffffffff).load_acquire());
    if (behind >= shm::kEndOfList) continue;
    if ((table.row(behind).word.load_acquire() & shm::kBucketKind) == 0) continue;
    change(table.row(number).word, shm::RowState::kLive, behind);
    break;
  }
  rows = view.count_rows("items");
  REQUIRE(rows.faults.size() == 1);
  CHECK(rows.faults.front().find("twice") != std::string::npos);
  {
    Worker worker(options(config));
    CHECK(view.count_rows("items").faults.empty());  // it may have been evicted, and linked elsewhere
  }
  // All buckets lead to the first row: the view doesn't follow each to the end.
  const std::uint64_t first = shm::reference_of(table.bucket(0).load_acquire());
  for (std::uint64_t bucket = 1; bucket < std::uint64_t{1} << table.record().bits.load_acquire(); ++bucket)
    change(table.bucket(bucket), shm::RowState::kLive, first);
  CHECK(view.count_rows("items").faults.size() == 10);
}

TEST_CASE("table: a damaged table that says that it is large is not read where it has no memory") {
  TableJob job(spec_of(100'000'000, 1));
  job.push(some_keys(100), 1.0F);
  const JobView view(job.config.job);
  OpenTable table(job.config.job);
  const std::uint64_t bytes = table.segment.allocated_bytes();
  table.record().rows_backed.store_release(100'000'000);
  table.record().rows_next.store_release(100'000'000);
  TableCensus rows = view.count_rows("items");
  REQUIRE(rows.faults.size() == 1);
  CHECK(rows.faults.front().find("100000000 rows are in use, and there is memory for") != std::string::npos);
  CHECK(view.table_rows("items").size() == 100);
  table.record().bits.store_relaxed(27);  // of 2^27 buckets that there may be
  rows = view.count_rows("items");
  CHECK(std::any_of(rows.faults.begin(), rows.faults.end(), [](const std::string& fault) {
    return fault.find("there are 134217728 buckets for") != std::string::npos;
  }));
  CHECK(table.segment.allocated_bytes() < 2 * bytes);
}

TEST_CASE("table: a look at a table whose rows come and go finds no damage") {
  TableSpec spec = spec_of(500, 1);
  const JobConfig config = row_config(UpdateRule::kAdd);
  Server server(config);
  Worker first(options(config)), second(options(config));
  std::atomic<bool> is_over = false;
  const auto churn = [&](Table table, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    Keys keys(32);
    for (std::uint64_t rounds = 0; !is_over || rounds < 500; ++rounds) {
      for (std::uint64_t& key : keys) key = random() % 1000;
      table.push(keys, Floats(32, 1.0F));
      table.evict(std::span(keys).first(16));
    }
  };
  Table of_first = first.table(spec), of_second = second.table(spec);
  std::thread other([&] { churn(of_second, 2); }), another([&] { churn(of_first, 1); });
  const JobView view(config.job);
  std::uint64_t with_keys = 0;
  for (int looks = 0; looks < (kIsSanitized ? 300 : 3000); ++looks) {
    const TableCensus rows = view.count_rows("items");
    CHECK_MESSAGE(rows.faults.empty(), (rows.faults.empty() ? std::string() : rows.faults.front()));
    with_keys += rows.with_keys;
    for (const TableRow& row : view.table_rows("items", 20)) CHECK(row.key < 1000);
  }
  is_over = true;
  other.join(), another.join();
  CHECK(with_keys > 0);
  CHECK(view.count_rows("items").faults.empty());
}
