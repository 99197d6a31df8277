// Workers that push the same rows at once, some of them killed: each element goes through the same records, none lost,
// none torn. All sums of gradients are 1, so an element's value after k pushes does not depend on who made them.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "shm/segment/directory.hpp"
#include "shm/slots/inplace_rows.hpp"
#include "support/processes.hpp"
#include "support/rows_job.hpp"
#include "support/rule_reference.hpp"
#include "support/stress.hpp"
#include "update/elements.hpp"

using namespace ps_shm;

namespace {

constexpr std::uint64_t kRows = 40;
constexpr std::uint32_t kPushers = 3;
constexpr UpdateRule kRules[] = {UpdateRule::kAdd,  UpdateRule::kMomentum,       UpdateRule::kAdagrad,
                                 UpdateRule::kFtrl, UpdateRule::kRowwiseAdagrad, UpdateRule::kAdam};

using Record = std::array<float, 4>;  // value and state; unused entries are 0
using Bits = std::array<std::uint32_t, 4>;

JobConfig config_of(UpdateRule rule, bool is_parted) {
  JobConfig config = test::row_config(rule);
  config.optimizer.initial_accumulator = 1.0F;
  config.optimizer.l1 = 0.25F;  // of ftrl
  config.threads = 2;
  if (is_parted) {
    config.ps_tasks = 3;
    config.placement = Placement::kPartition;
    config.partition_by = PartitionBy::kHash;
  }
  return config;
}

// An element's record after 0, 1, 2 ... pushes of 1. For rowwise_adagrad only the row's n, as {n}.
std::vector<Record> records_of(const JobConfig& config, std::uint64_t most) {
  const UpdateRule rule = config.optimizer.rule;
  const update::Settings settings = update::settings_of(config.optimizer, rule, true);
  const float rate = config.optimizer.lr.value();
  std::vector<Record> all(most + 1, Record{});
  if (rule == UpdateRule::kRowwiseAdagrad) {
    for (std::uint64_t k = 0; k <= most; ++k) all[k][0] = settings.initial_accumulator + float(k);
    return all;
  }
  constexpr float kZero = 0.0F;
  update::initialise_elements(settings, rate, &kZero, all[0].data(), 1);
  update::with_element_update(settings, rate, 1.0F, [&](const auto& update) {
    for (std::uint64_t k = 1; k <= most; ++k) {
      all[k] = all[k - 1];
      if constexpr (!requires { update.with_state(0.0F); }) shm::update_record(update, all[k].data(), 1.0F);
    }
  });
  return all;
}

// One push after the other: few rows and many, ordered and not, each once or, as two halves, twice.
class Pusher {
 public:
  Pusher(const std::string& job, std::uint64_t seed)
      : random_(seed),
        worker_({.job = job, .rank = {}, .threads = 2, .stop_requested = {}, .log = [](const auto&) {}}),
        table_(worker_.variable("table")) {}

  // Adds to `counts` how often each row is pushed.
  void push(std::vector<std::uint64_t>& counts) {
    std::vector<std::uint32_t> ids = test::ids_of_all(kRows);
    if (random_() % 16 == 0) {
      worker_.push(table_, std::vector<float>(table_.element_count(), 1.0F));  // all rows, as entire blocks
    } else {
      std::shuffle(ids.begin(), ids.end(), random_);
      ids.resize(1 + random_() % (random_() % 2 == 0 ? 4 : kRows));
      const bool is_repeated = random_() % 3 == 0;
      if (random_() % 2 == 0) std::sort(ids.begin(), ids.end());
      std::vector<std::uint32_t> given = ids;
      if (is_repeated) given.insert(given.end(), ids.begin(), ids.end());
      worker_.push_rows(table_, given, std::vector<float>(given.size() * table_.row_size(), is_repeated ? 0.5F : 1.0F));
    }
    for (const std::uint32_t id : ids) ++counts[id];
  }

  // The values of all rows.
  std::vector<float> pull() {
    std::vector<float> out(table_.element_count());
    worker_.pull_rows(table_, test::ids_of_all(kRows), out);
    return out;
  }

 private:
  std::mt19937_64 random_;
  Worker worker_;
  Variable table_;
};

// The table of a job as stored in its shards.
class StoredTable {
 public:
  explicit StoredTable(const std::string& job)
      : segments_(test::attach(job)), directory_(segments_), rows_(directory_.at(0)) {
    for (const std::uint32_t part : directory_.parts(0))
      rows_.add_part(segments_.shard_data(directory_.at(part).shard), directory_.at(part));
    has_row_state_ = rows_.parts().front().variable.has_row_state();
  }

  // How many records of each row must agree: one per element, or only the state of the row.
  std::uint64_t records() const { return has_row_state_ ? 1 : rows_.row_elements(); }
  Record record(std::uint64_t row, std::uint64_t i) const {
    const auto* const first = reinterpret_cast<const float*>(rows_.at(rows_.find(row)));
    Record found{};
    if (has_row_state_)
      found[0] = first[rows_.row_elements()];
    else
      std::copy_n(first + i * rows_.record(), rows_.record(), found.begin());
    return found;
  }

 private:
  shm::JobSegments segments_;
  shm::Directory directory_;
  shm::Rows rows_;
  bool has_row_state_ = false;
};

void declare(Worker& worker, std::uint64_t width) {
  static_cast<void>(
      worker.variable({.name = "table", .shape = {kRows, width}, .layout = Layout::kInplace, .regularize = true},
                      [](std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); }));
}

template <class Body>
void for_kinds(Body&& body) {
  for (const UpdateRule rule : kRules)
    for (const std::uint64_t width : {1, 3, 16})
      for (const bool is_parted : {false, true}) {
        if (!test::works_in_place(rule)) continue;
        CAPTURE(std::string(to_string(rule)));
        CAPTURE(width);
        CAPTURE(is_parted);
        body(config_of(rule, is_parted), width);
      }
}

}  // namespace

TEST_CASE("rows: pushes of rows by several workers are all applied, and pulls meanwhile see values that existed") {
  const std::uint64_t seed = test::stress_seed(), rounds = test::stress_rounds(300);
  for_kinds([&](const JobConfig& config, std::uint64_t width) {
    Server server(config);
    Worker first(test::options(config));
    declare(first, width);
    const std::vector<Record> expected = records_of(config, kPushers * rounds);
    std::set<std::uint32_t> values;  // the values that may be pulled
    const update::Settings settings = update::settings_of(config.optimizer, config.optimizer.rule, true);
    update::with_element_value(settings, config.optimizer.lr.value(), [&](const auto& value_of) {
      for (const Record& record : expected) values.insert(std::bit_cast<std::uint32_t>(value_of(record.data()) + 0.0F));
    });
    std::vector<std::uint64_t> counts(kRows);
    std::mutex mutex;
    std::atomic<std::uint32_t> pushing{kPushers};
    std::atomic<std::uint64_t> strange{0};
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < kPushers; ++i)
      threads.emplace_back([&, i] {
        Pusher pusher(config.job, seed + i);
        std::vector<std::uint64_t> mine(kRows);
        for (std::uint64_t round = 0; round < rounds; ++round) pusher.push(mine);
        const std::lock_guard lock(mutex);
        for (std::uint64_t row = 0; row < kRows; ++row) counts[row] += mine[row];
        --pushing;
      });
    threads.emplace_back([&] {
      Pusher reader(config.job, seed);
      while (pushing != 0)
        for (const float value : reader.pull())
          strange += config.optimizer.rule != UpdateRule::kRowwiseAdagrad &&
                     values.count(std::bit_cast<std::uint32_t>(value + 0.0F)) == 0;
    });
    for (std::thread& thread : threads) thread.join();
    CHECK(strange == 0);
    const StoredTable table(config.job);
    for (std::uint64_t row = 0; row < kRows; ++row)
      for (std::uint64_t i = 0; i < table.records(); ++i)
        REQUIRE(std::bit_cast<Bits>(table.record(row, i)) == std::bit_cast<Bits>(expected[counts[row]]));
  });
}

TEST_CASE("rows: a worker that is killed while it pushes rows tears no element, and the others lose nothing" *
          doctest::skip(shm::kThreadSanitizer)) {  // it does not support forks of processes with threads
  const std::uint64_t seed = test::stress_seed(), rounds = test::stress_rounds(300);
  constexpr std::uint64_t kMaxOfVictim = 100'000;
  std::uint64_t of_victims = 0;
  std::mt19937_64 random(seed);
  for_kinds([&](const JobConfig& config, std::uint64_t width) {
    Server server(config);
    Worker first(test::options(config));
    declare(first, width);
    const test::SharedCount pushed;  // by the victim
    std::vector<std::unique_ptr<test::Child>> children;
    for (std::uint32_t i = 0; i < kPushers; ++i)
      children.push_back(std::make_unique<test::Child>([&, i] {
        Pusher pusher(config.job, seed + i);
        std::vector<std::uint64_t> counts(kRows);
        // The last one continues until it is killed; the bound ends it if its parent has died.
        for (std::uint64_t round = 0; round < (i + 1 < kPushers ? rounds : kMaxOfVictim); ++round) {
          pusher.push(counts);
          if (i + 1 == kPushers) pushed.raise();
        }
        return 0;
      }));
    const std::uint64_t wanted = 10 + random() % 200;
    CHECK(test::eventually([&] { return pushed.get() >= wanted; }));
    children.back()->kill();
    for (std::uint32_t i = 0; i + 1 < kPushers; ++i) CHECK(children[i]->join() == 0);
    // The survivors' pushes, whose seeds are known, are the minimum.
    std::vector<std::uint64_t> least(kRows);
    {
      const JobConfig other = config_of(config.optimizer.rule, false);
      Server replay(other);
      Worker declarer(test::options(other));
      declare(declarer, width);
      for (std::uint32_t i = 0; i + 1 < kPushers; ++i) {
        Pusher pusher(other.job, seed + i);
        for (std::uint64_t round = 0; round < rounds; ++round) pusher.push(least);
      }
    }
    const std::vector<Record> expected = records_of(config, kMaxOfVictim + kPushers * rounds);
    const StoredTable table(config.job);
    for (std::uint64_t row = 0; row < kRows; ++row)
      for (std::uint64_t i = 0; i < table.records(); ++i) {
        const Bits found = std::bit_cast<Bits>(table.record(row, i));
        const auto from = expected.begin() + std::ptrdiff_t(least[row]);
        const auto at = std::find_if(from, expected.end(),
                                     [&](const Record& record) { return std::bit_cast<Bits>(record) == found; });
        REQUIRE(at != expected.end());
        of_victims += at != from;
      }
  });
  CHECK(of_victims != 0);  // otherwise none was killed in the middle of anything
}
