// Checkpoints of jobs with tables by key, and jobs that begin with them.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "persistence/tensor_reader.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "support/folder.hpp"
#include "support/rule_reference.hpp"
#include "support/table_job.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

JobConfig restoring(JobConfig config, const std::string& folder) {
  config.job = unique_job_name();
  config.restore = folder;
  return config;
}

TableCopy copy_of(Table& table) {
  TableCopy copy;
  copy.follow(table);
  return copy;
}

}  // namespace

TEST_CASE("table checkpoint: a job goes on with the rows and their state, over any number of tasks, under every rule") {
  for (const UpdateRule rule : rules_where([](const update::Traits&) { return true; })) {
    if (!works_in_place(rule)) continue;
    CAPTURE(std::string(to_string(rule)));
    const Folder folder;
    JobConfig config = row_config(rule);
    config.ps_tasks = 2, config.placement = Placement::kPartition;
    TableSpec spec = spec_of(9000, 3);
    TableJob job(spec, config);
    const Keys keys = some_keys(5000);
    for (const float gradient : {1.0F, -0.5F}) job.push(keys, gradient);
    TableSpec other = spec_of(192, 1);
    other.name = "others";
    other.rule = UpdateRule::kAdd;
    job.worker.table(other).push(Keys{7}, Floats{1});
    const Checkpoint saved(Checkpoint::save(JobView(job.config.job), folder.path()));
    saved.verify();
    REQUIRE(saved.tables().size() == 2);
    CHECK(saved.tables()[0].name == "items");
    CHECK(saved.tables()[0].rows == 5000);
    CHECK(saved.tables()[0].slots == job.table.slots());
    CHECK(saved.tables()[1].rows == 1);
    for (const std::uint32_t tasks : {1U, 3U}) {
      config.ps_tasks = tasks, config.placement = Placement::kPartition;
      TableJob next(spec, restoring(config, saved.folder()));
      CHECK(copy_of(next.table).rows == copy_of(job.table).rows);
      CHECK(next.worker.table(other).statistics().rows == 1);
      if (tasks == 1) {
        JobConfig faster = config;
        faster.optimizer.lr = 4 * job.worker.live().lr;  // where values are computed from the rate, the values stay
        TableJob same(spec, restoring(faster, saved.folder()));
        const Floats is = same.pull(keys), was = job.pull(keys);
        for (std::size_t i = 0; i < was.size(); ++i) REQUIRE(is[i] == doctest::Approx(was[i]).epsilon(1e-5));
        continue;
      }
      job.push(keys, 2.0F), next.push(keys, 2.0F);
      CHECK(next.pull(keys) == job.pull(keys));
      Worker late(options(next.config));  // finds the table as it is now
      CHECK(copy_of(next.table).rows == [&] {
        Table same = late.table(spec);
        return copy_of(same).rows;
      }());
    }
  }
}

TEST_CASE("table checkpoint: its files are safetensors of keys, rows and slots") {
  const Folder folder;
  TableJob job(spec_of(1000, 4), row_config(UpdateRule::kRowwiseAdagrad));
  const Keys keys = some_keys(100);
  job.push(keys, 1.0F);
  const std::string saved = Checkpoint::save(JobView(job.config.job), folder.path());
  const auto tensor = [&](int number, const std::string& name) {
    return persistence::TensorFile(saved + "/tables-0000" + std::to_string(number) + "-of-00003.safetensors")
        .tensors()
        .at(name);
  };
  CHECK(tensor(1, "items.keys").dtype == "U64");
  CHECK(tensor(1, "items.keys").shape == std::vector<std::uint64_t>{100});
  CHECK(tensor(2, "items.rows").shape == std::vector<std::uint64_t>{100, 4});
  CHECK(tensor(3, "items." + job.table.slots().front()).shape == std::vector<std::uint64_t>{100});
  const Checkpoint checkpoint(saved);
  Keys some(10);
  Floats rows(40), state(10);
  checkpoint.read_rows("items", 90, some, rows, state);
  CHECK(job.pull(some) == rows);
  CHECK_THROWS_AS(checkpoint.read_rows("items", 91, some, rows), Error);
  CHECK_THROWS_AS(checkpoint.read_rows("others", 0, some, rows), Error);
  CHECK_THROWS_AS(checkpoint.read_rows("items", 0, some, state), Error);
}

TEST_CASE("table checkpoint: rows that do not fit are left out, other rules and sizes are refused") {
  const Folder folder;
  JobConfig config = row_config(UpdateRule::kMomentum);
  TableJob job(spec_of(6000, 2), config);
  const Keys keys = some_keys(5000);
  job.push(keys, 1.0F);
  const std::string saved = Checkpoint::save(JobView(job.config.job), folder.path());
  for (const double ttl : {0.0, 3600.0}) {
    const JobConfig next = restoring(config, saved);
    const Server server(next);
    std::vector<std::string> lines;
    WorkerOptions given = options(next);
    given.log = [&](const std::string& line) { lines.push_back(line); };
    Worker worker(given);
    TableSpec few = spec_of(1000, 2);
    few.ttl = ttl;
    Table table = worker.table(few);
    CHECK(table.statistics().rows == 1000);
    CHECK(table.statistics().evicted == 0);
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].find("table 'items': 4000 of 5000 rows of the checkpoint do not fit") != std::string::npos);
    TableCopy whole = copy_of(job.table), part = copy_of(table);
    for (const auto& [key, row] : part.rows) REQUIRE(row == whole.rows[key]);
    TableSpec fresh = spec_of(1000, 2);
    fresh.name = "fresh";
    CHECK(worker.table(fresh).statistics().rows == 0);
    CHECK(lines.back().find("has no table 'fresh'") != std::string::npos);
  }
  const auto refused = [&](std::uint64_t width, UpdateRule rule) -> std::string {
    try {
      TableSpec spec = spec_of(1000, width);
      spec.rule = rule;
      TableJob(spec, restoring(config, saved));
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kIncompatible);
      return error.what();
    }
    return {};
  };
  CHECK(refused(3, UpdateRule::kMomentum).find("rows of 2 by rule momentum there, and of 3 by rule momentum here") !=
        std::string::npos);
  CHECK(refused(2, UpdateRule::kSgd).find("rows of 2 by rule momentum there, and of 2 by rule sgd here") !=
        std::string::npos);
  CHECK(refused(2, UpdateRule::kNesterov).find("and of 2 by rule nesterov here") !=
        std::string::npos);  // with the same slots
}

TEST_CASE("table checkpoint: nothing of it stays if its files cannot be written to the end") {
  const Folder folder;
  TableJob job(spec_of(9000, 3), row_config(UpdateRule::kAdagrad));
  job.push(some_keys(8000), 1.0F);
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  for (const rlim_t bytes : {rlim_t{100}, rlim_t{5'000}, rlim_t{70'000}}) {  // in a header, in the keys, in the rows
    const rlimit limit{bytes, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
    CHECK_THROWS_AS(Checkpoint::save(JobView(job.config.job), folder.path()), Error);
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK(std::filesystem::is_empty(folder.path()));
  }
  signal(SIGXFSZ, SIG_DFL);
  Checkpoint(Checkpoint::save(JobView(job.config.job), folder.path())).verify();
}

TEST_CASE("table checkpoint: is written while rows are pushed, made and evicted; two workers restore it once") {
  const Folder folder;
  TableSpec spec = spec_of(512, 4);
  spec.initial_range = 0;
  JobConfig config = row_config(UpdateRule::kAdd);
  std::string saved;
  {
    TableJob job(spec, config);
    std::atomic<bool> stop = false;
    std::jthread pusher([&] {
      Worker worker(options(job.config));
      Table table = worker.table(spec);
      std::mt19937_64 random(1);
      while (!stop) {
        const Keys keys{random() % 2000 + 1};
        table.push(keys, Floats(4, float(keys[0])));
      }
    });
    job.push(some_keys(10), 0.0F);
    for (int i = 0; i < 3; ++i) saved = Checkpoint::save(JobView(job.config.job), folder.path());
    stop = true;
  }
  const Checkpoint checkpoint(saved);
  checkpoint.verify();
  const StoredTable& stored = checkpoint.tables()[0];
  Keys keys(stored.rows);
  Floats rows(stored.rows * stored.row_size);
  checkpoint.read_rows(stored.name, 0, keys, rows);
  // A key that was evicted and made again while the writer passed it is stored twice.
  const std::size_t different = std::set<std::uint64_t>(keys.begin(), keys.end()).size();
  const Server server(config = restoring(config, saved));
  std::vector<std::jthread> workers;
  for (int i = 0; i < 2; ++i)
    workers.emplace_back([&] {
      Worker worker(options(config));
      Table table = worker.table(spec);
      CHECK(table.statistics().made == different);
      table.dump(0, [&](const TableRow& row) {
        for (const float value : row.values)  // a row is its key's
          if (row.key <= 2000 && std::fmod(value, float(row.key)) != 0) FAIL_CHECK("a value of another key");
      });
      worker.barrier();
    });
}
