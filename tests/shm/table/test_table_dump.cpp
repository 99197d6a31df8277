// Dumps of tables by key: rows with the optimizer's state, and what has changed since an earlier dump.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/job_view.hpp"
#include "support/own_shm.hpp"
#include "support/rule_reference.hpp"
#include "support/table_job.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

// The keys of the rows of a dump, and those that were evicted.
struct Changes {
  std::set<std::uint64_t> rows, evicted;
  TableDump dump;

  Changes(Table& table, std::uint64_t since) {
    dump = table.dump(
        since, [&](const TableRow& row) { CHECK(rows.insert(row.key).second); },
        [&](std::uint64_t key) { CHECK(evicted.insert(key).second); });
  }
};

std::set<std::uint64_t> set_of(const Keys& keys, std::size_t first, std::size_t past) {
  return {keys.begin() + std::ptrdiff_t(first), keys.begin() + std::ptrdiff_t(past)};
}

}  // namespace

TEST_CASE("table dump: rows go on with the state that they are assigned with, under every rule") {
  for (const UpdateRule rule : test::rules_where([](const update::Traits&) { return true; })) {
    if (!test::works_in_place(rule)) continue;
    for (const std::uint64_t width : {1, 5}) {
      CAPTURE(std::string(to_string(rule)));
      CAPTURE(width);
      JobConfig config = row_config(rule);
      TableSpec spec = spec_of(100, width);
      spec.regularize = 1.0F;
      TableJob job(spec, config);
      static_cast<void>(job.worker.variable({.name = "rows", .shape = {40, width}, .layout = Layout::kInplace},
                                            [](std::span<float>) {}));
      const Keys keys = some_keys(40);
      for (const float gradient : {1.0F, -0.25F, 3.0F}) job.push(keys, gradient);
      config.job = test::unique_job_name();
      spec.seed = 1;
      TableJob other(spec, config);
      CHECK(other.table.state_size() == job.table.state_size());
      job.table.dump(0, [&](const TableRow& row) {
        REQUIRE(row.values.size() == width);
        REQUIRE(row.state.size() == job.table.state_size());
        CHECK(other.table.assign({&row.key, 1}, row.values, row.state).updated == 1);
      });
      CHECK(job.table.slots() == JobView(job.config.job).variables().front().slots);
      CHECK(other.pull(keys) == job.pull(keys));
      for (const float gradient : {0.5F, -2.0F}) job.push(keys, gradient), other.push(keys, gradient);
      CHECK(other.pull(keys) == job.pull(keys));
    }
  }
}

TEST_CASE("table dump: has the rows that were pushed, made or assigned since, and the keys that were evicted") {
  for (const std::uint32_t tasks : {1U, 3U}) {
    JobConfig config = row_config(UpdateRule::kAdd);
    config.ps_tasks = tasks, config.placement = Placement::kPartition;
    TableJob job(spec_of(5000, 2), config);
    const Keys keys = some_keys(1000);
    job.push(keys, 1.0F);
    const Changes all(job.table, 0);
    CHECK(all.dump.is_full);
    CHECK(all.rows.size() == 1000);
    CHECK(all.evicted.empty());
    job.push({keys.begin(), keys.begin() + 10}, 1.0F);
    job.table.assign(Keys{keys[10]}, Floats{1, 2});
    job.pull(keys);
    const Keys gone(keys.begin() + 20, keys.begin() + 50);
    CHECK(job.table.evict(gone) == 30);
    job.push({gone.begin(), gone.begin() + 3}, 1.0F);
    const Keys made = some_keys(5, 2);
    job.push(made, 1.0F);
    const Changes some(job.table, all.dump.version);
    CHECK(!some.dump.is_full);
    std::set<std::uint64_t> expected = set_of(keys, 0, 11);
    expected.insert(made.begin(), made.end());
    expected.insert(gone.begin(), gone.begin() + 3);
    CHECK(some.rows == expected);
    CHECK(some.evicted == set_of(gone, 3, 30));
    const Changes none(job.table, some.dump.version);
    CHECK(!none.dump.is_full);
    CHECK(none.rows.empty());
    CHECK(none.evicted.empty());
    const Changes again(job.table, all.dump.version);  // a version may be asked with again
    CHECK(again.rows == expected);
    CHECK(again.evicted == some.evicted);
  }
}

TEST_CASE("table dump: an unknown version, and one whose evictions are forgotten, give all rows") {
  TableJob job(spec_of(4096, 1));
  const Keys keys = some_keys(2000);
  job.push(keys, 1.0F);
  const std::uint64_t version = job.table.dump(0, {}).version;
  CHECK(job.table.evict({keys.begin(), keys.begin() + 256}) == 256);  // as many as are remembered
  const Changes some(job.table, version);
  CHECK(!some.dump.is_full);
  CHECK(some.evicted == set_of(keys, 0, 256));
  CHECK(job.table.evict({keys.begin() + 256, keys.begin() + 288}) == 32);
  const Changes all(job.table, version);
  CHECK(all.dump.is_full);
  CHECK(all.rows == set_of(keys, 288, 2000));
  CHECK(all.evicted.empty());
  CHECK(!Changes(job.table, some.dump.version).dump.is_full);
  CHECK(Changes(job.table, all.dump.version + 10).dump.is_full);  // of no dump yet
  TableSpec spec = spec_of(4096, 1);
  spec.name = "others";
  Table other = job.worker.table(spec);
  other.dump(0, {});
  other.dump(0, {});
  CHECK(Changes(other, version).dump.is_full);
  CHECK_THROWS_AS(job.table.dump(0, [](const TableRow&) { throw std::runtime_error("enough"); }), std::runtime_error);
}

TEST_CASE("table dump: keys that are evicted while no memory is left for the list of them give all rows") {
  check_in_own_shm("size=64m", [] {
    TableJob job(spec_of(4096, 1));
    const Keys keys = some_keys(600);
    job.push(keys, 1.0F);
    const std::uint64_t version = job.table.dump(0, {}).version;
    {
      const Filler filler(0);
      if (job.table.evict({keys.begin(), keys.begin() + 40}) != 40) return 1;
    }
    if (job.table.evict({keys.begin() + 40, keys.begin() + 50}) != 10) return 2;  // these find memory
    const Changes all(job.table, version);
    if (!all.dump.is_full || all.rows != set_of(keys, 50, 600) || !all.evicted.empty()) return 3;
    if (job.table.evict({keys.begin() + 50, keys.begin() + 60}) != 10) return 4;
    const Changes some(job.table, all.dump.version);
    return !some.dump.is_full && some.rows.empty() && some.evicted == set_of(keys, 50, 60) ? 0 : 5;
  });
}

TEST_CASE("table dump: a copy that is kept by dumps is the table, while others push and evict") {
  for (const UpdateRule rule : {UpdateRule::kAdd, UpdateRule::kRowwiseAdagrad}) {
    TableSpec spec = spec_of(512, 4);
    TableJob job(spec, row_config(rule));
    std::atomic<bool> stop = false;
    std::vector<std::jthread> pushers;
    for (std::uint64_t seed = 1; seed <= 2; ++seed)
      pushers.emplace_back([&, seed] {
        Worker worker(options(job.config));
        Table table = worker.table(spec);
        std::mt19937_64 random(seed);
        for (int round = 0; !stop || round < 50; ++round) {
          Keys keys(1 + random() % 40);
          for (std::uint64_t& key : keys) key = random() % 900;
          std::sort(keys.begin(), keys.end());
          keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
          table.push(keys, Floats(keys.size() * 4, 1.0F));
          if (round % 8 == 0) table.evict({keys.data(), keys.size() / 2});
        }
      });
    TableCopy copy;
    for (int i = 0; i < 200; ++i) copy.follow(job.table);
    stop = true;
    pushers.clear();
    copy.follow(job.table);
    TableCopy expected;
    expected.follow(job.table);
    CHECK(copy.rows.size() > 100);
    CHECK(copy.rows == expected.rows);
  }
}
