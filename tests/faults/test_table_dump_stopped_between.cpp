// A dump of a table by key at each moment of a push or an eviction, and behind a death there: what it does not have, the
// next one has. And deaths while a table is restored.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "faults/strike.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/job_view.hpp"
#include "shm/segment/names.hpp"
#include "support/folder.hpp"
#include "support/table_job.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

TEST_CASE(
    "table stopped between: a dump at any moment of a push or an eviction misses nothing (table.P4, table.L2, "
    "table.D3)") {
  TableSpec spec = spec_of(64, 2);
  spec.initial_range = 0;
  TableJob job(spec, row_config(UpdateRule::kMomentum));
  Worker second(options(job.config));
  Table dumped = second.table(spec);
  TableCopy copy;
  copy.follow(dumped);
  const Keys keys = some_keys(6);
  const auto check = [&] {
    copy.follow(dumped);
    TableCopy expected;
    expected.follow(dumped);
    REQUIRE(copy.rows == expected.rows);
  };
  const std::function<void()> actions[] = {
      [&] {
        job.push({keys.begin(), keys.begin() + 3}, 1.0F);
      },  // rows that are there, or are made
      [&] {
        job.table.evict({keys.begin() + 1, keys.begin() + 5});
      },  // and some that are not there
      [&] { job.table.evict(keys), job.push(keys, 1.0F); },
      [&] { job.push(some_keys(70, 3), 1.0F); },  // more than there is room for
  };
  for (const auto& action : actions)
    for (const auto& before : actions) {
      for (const bool is_full : {false, true}) {
        std::uint64_t access = 1;
        for (bool goes_on = true; goes_on && access < 4000; access += &action == &actions[3] ? 97 : 1) {
          before();
          check();
          TableCopy begun;  // with a dump of all rows
          TableCopy& at_the_moment = is_full ? begun : copy;
          goes_on = run_with(action, access, [&] { at_the_moment.follow(dumped); });
          begun.follow(dumped);
          check();
          REQUIRE(begun.rows == copy.rows);
        }
        CHECK(access > 10);
      }
    }
  CHECK(copy.full < 20);  // else hardly any of them was of the changes alone
}

TEST_CASE(
    "table stopped between: the dump behind a death at any point of an eviction or a push misses nothing (table.L1, "
    "table.D2)") {
  TableSpec spec = spec_of(64, 2);
  spec.initial_range = 0;
  TableJob job(spec, row_config(UpdateRule::kMomentum));
  const Keys keys = some_keys(6);
  TableCopy copy;
  bool was_killed = true;
  int deaths = 0;
  for (int point = 1; was_killed && point < 1000; ++point) {
    job.push({keys.begin(), keys.begin() + 4}, 1.0F);
    copy.follow(job.table);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      Worker worker(options(job.config));
      Table table = worker.table(spec);
      static int left;
      left = point;
      shm::g_fault_hooks.reached = [](shm::FaultPoint) {
        if (--left == 0) raise(SIGKILL);
      };
      table.evict({keys.begin(), keys.begin() + 3});
      table.push({keys.begin() + 2, keys.end()}, Floats(8, 1.0F));
      shm::g_fault_hooks = {};
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    was_killed = WIFSIGNALED(status);
    deaths += was_killed;
    copy.follow(job.table);
    TableCopy expected;
    expected.follow(job.table);
    std::erase_if(expected.rows, [&](const auto& row) {  // made and not updated: may be missing
      return !copy.rows.contains(row.first) && row.second == Floats(row.second.size());
    });
    REQUIRE(copy.rows == expected.rows);
    job.table.expire();  // repairs what was left
  }
  CHECK(deaths > 20);
  CHECK(copy.full == 1);
}

TEST_CASE(
    "table stopped between: a worker that is killed while it restores a table leaves that to the next one (data.D1)") {
  const Folder folder;
  const TableSpec spec = spec_of(1000, 2);
  const Keys keys = some_keys(500);
  JobConfig config = row_config(UpdateRule::kMomentum);
  config.ps_tasks = 2, config.placement = Placement::kPartition;  // killed in the first part, or in the second one
  TableCopy expected;
  {
    TableJob job(spec, config);
    job.push(keys, 1.0F);
    config.restore = Checkpoint::save(JobView(config.job), folder.path());
    expected.follow(job.table);
  }
  for (const int rows : {1, 100, 400}) {
    CAPTURE(rows);
    config.job = unique_job_name();
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      static int left;
      left = rows;
      shm::g_fault_hooks.reached = [](shm::FaultPoint point) {
        if (point == shm::FaultPoint::kRowLinked && --left == 0) raise(SIGKILL);
      };
      Worker worker(options(config));  // waits for the job
      worker.table(spec);
      _exit(0);
    }
    const Server server(config);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    CHECK(shm::list_segments("ps_shm." + config.job + ".t").size() == (rows < 200 ? 0 : 1));
    Worker worker(options(config));
    Table table = worker.table(spec);
    TableCopy copy;
    copy.follow(table);
    CHECK(copy.rows == expected.rows);
  }
}
