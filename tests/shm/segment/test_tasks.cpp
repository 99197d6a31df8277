// Several ps tasks, and the memory of their shards.
#include <doctest/doctest.h>
#include <linux/mempolicy.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "ps_shm/errors.hpp"
#include "shm/checks/validation.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/steps/worker_table.hpp"
#include "support/manual_clock.hpp"
#include "support/placement.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

TEST_CASE("tasks: shards are added in any order, and nobody attaches before all are there") {
  for (const std::vector<std::uint32_t>& order : {Shards{1, 2, 3}, Shards{3, 1, 2}, Shards{2, 3, 1}}) {
    const JobName name;
    JobConfig config = config_of({.workers = 2, .ps_tasks = 4});
    config.job = name.text();
    const shm::JobSegments first = shm::JobSegments::create(config);
    std::vector<shm::JobSegments> tasks;
    shm::AttachOutcome outcome;
    for (const std::uint32_t task : order) {
      CHECK_FALSE(shm::JobSegments::try_attach(name.text(), shm::Access::kReadWrite, outcome));
      CHECK(outcome == shm::AttachOutcome::kShardMissing);
      CHECK_FALSE(JobView::try_open(name.text()));
      auto control = shm::JobSegments::try_attach_control(name.text(), outcome);
      REQUIRE(control);
      control->add_task(task, {});
      tasks.push_back(std::move(*control));
    }
    CHECK(shm::JobSegments::try_attach(name.text(), shm::Access::kReadWrite, outcome));
    const JobInfo info = JobView(name.text()).info();
    REQUIRE(info.tasks.size() == 4);
    for (const TaskInfo& task : info.tasks) CHECK(task.is_alive);
  }
}

TEST_CASE("tasks: one whose first task does not come gives up, and reports what to start") {
  JobConfig config = config_of({.workers = 2, .ps_tasks = 2});
  const ServerOptions options{.task = 1, .wait_job = Seconds(10)};
  const ManualClock clock(ManualClock::Sleeps::kPass);
  CHECK_THROWS_WITH_AS(Server(config, options), doctest::Contains("start ps_shm `task` 0"), Timeout);
  CHECK(clock.passed_ns() >= 10 * kSecond);
  CHECK(clock.passed_ns() <= 10 * kSecond + kSlice);
}

TEST_CASE("tasks: a live task's byte is refused, a dead one's is taken over with its shard") {
  const JobName name;
  JobConfig config = config_of({.workers = 2, .ps_tasks = 2});
  config.job = name.text();
  const shm::JobSegments first = shm::JobSegments::create(config);
  shm::AttachOutcome outcome;
  auto second = shm::JobSegments::try_attach_control(name.text(), outcome);
  second->add_task(1, {});
  second->shard(1).grow(1 << 20);
  auto third = shm::JobSegments::try_attach_control(name.text(), outcome);
  CHECK_THROWS_WITH_AS(third->add_task(1, {}), doctest::Contains("served"), Error);
  CHECK_THROWS_AS(third->add_task(0, {}), Error);
  second.reset();
  CHECK_FALSE(JobView(name.text()).info().tasks[1].is_alive);
  third->add_task(1, {});
  CHECK(JobView(name.text()).info().tasks[1].is_alive);
  CHECK(third->shard(1).file_bytes() == 1 << 20);
}

TEST_CASE("tasks: a task that restarts finds a shard that appeared after it had attached") {
  const JobName name;
  JobConfig config = config_of({.workers = 2, .ps_tasks = 3});
  config.job = name.text();
  const shm::JobSegments first = shm::JobSegments::create(config);
  shm::AttachOutcome outcome;
  shm::JobSegments::try_attach_control(name.text(), outcome)->add_task(1, {});  // and dies
  auto returning = shm::JobSegments::try_attach_control(name.text(), outcome);
  auto last = shm::JobSegments::try_attach_control(name.text(), outcome);
  last->add_task(2, {});
  Worker worker(options(config));
  declare(worker, {spec("a", {10}), spec("b", {10}), spec("c", {10})});
  REQUIRE(shards(config.job).at("c") == Shards{2});
  CHECK(returning->try_add_task(1, {}, shm::check_job));
}

TEST_CASE("tasks: servers of one job in one process; the last one out removes it") {
  for (const bool first_leaves_first : {true, false}) {
    const JobConfig config = config_of({.workers = 2, .ps_tasks = 2});
    const JobName name(config.job);
    ServerOptions one;
    one.task = 0;
    auto first = std::make_unique<Server>(config, one);
    one.task = 1;
    auto second = std::make_unique<Server>(config, one);
    {
      Worker worker(options(config));
      declare(worker, {spec("a", {100}), spec("b", {100})});
      CHECK(shards(config.job).at("b") == Shards{1});
    }
    (first_leaves_first ? first : second).reset();
    CHECK(JobView(config.job).values("b").size() == 100);
    CHECK(JobView(config.job).info().served);
    {
      Worker worker(options(config));  // continues the job unchanged
      CHECK(worker.variable("a").element_count() == 100);
    }
    (first_leaves_first ? second : first).reset();
    CHECK(name.segments().empty());
  }
}

TEST_CASE("tasks: a worker that is still alive keeps the job's segments when all tasks are gone") {
  const JobConfig config = config_of({.workers = 2, .ps_tasks = 2});
  const JobName name(config.job);
  auto server = std::make_unique<Server>(config);
  auto worker = std::make_unique<Worker>(options(config));
  server.reset();
  CHECK(name.segments().size() == 3);
  worker.reset();
}

TEST_CASE("tasks: a successor takes over a dead task's shard, even that of task 0") {
  for (const std::uint32_t dead : {1U, 0U}) {
    CAPTURE(dead);
    const JobConfig config = config_of({.workers = 2, .ps_tasks = 2});
    const JobName name(config.job);
    ServerOptions given;
    given.wait_job = Seconds(60);
    std::unique_ptr<Server> tasks[2];
    for (std::uint32_t task : {0U, 1U}) {
      given.task = task;
      tasks[task] = std::make_unique<Server>(config, given);
    }
    Worker worker(options(config));
    const Variable variable = declare(worker, {spec("a", {100}), spec("b", {100})})[dead];
    tasks[dead].reset();  // the other one keeps the job
    given.task = dead;
    CHECK_NOTHROW(tasks[dead] = std::make_unique<Server>(config, given));
    worker.push(variable, std::vector<float>(100, 1.0F));
    CHECK(JobView(config.job).info().tasks[dead].is_alive);
  }
}

TEST_CASE("tasks: a worker's death is one event, however many tasks see it") {
  const JobConfig config = config_of({.workers = 2, .ps_tasks = 2});
  const JobName name(config.job);
  Server first(config, {.task = 0}), second(config, {.task = 1});
  shm::AttachOutcome outcome;
  {
    auto dead = shm::JobSegments::try_attach(config.job, shm::Access::kReadWrite, outcome);
    REQUIRE(dead);
    std::uint32_t rank;
    REQUIRE(shm::try_join(*dead, {}, rank) == shm::JoinOutcome::kJoined);
  }
  std::vector<std::string> said;
  const ServeHooks once = {.stop_requested = [] { return true; },
                           .stop_at_once = {},
                           .log = [&](const std::string& line) { said.push_back(line); },
                           .every_second = {}};
  for (Server* task : {&second, &first}) {
    said.clear();
    CHECK(task->serve(once) == EndReason::kStopRequested);
    CHECK(std::count_if(said.begin(), said.end(),
                        [](const std::string& line) { return line.find("died") != std::string::npos; }) == 1);
  }
  int told = 0;
  for (const Event& event : JobView(config.job).events()) told += event.kind == "died";
  CHECK(told == 1);
}

TEST_CASE("tasks: a task with a different number of tasks, or out of range, is refused") {
  const JobConfig config = config_of({.workers = 2, .ps_tasks = 2});
  ServerOptions given;
  given.task = 0;
  Server first(config, given);
  JobConfig other = config;
  other.ps_tasks = 3;
  given.task = 1;
  given.wait_job = Seconds(0.1);
  CHECK_THROWS_WITH_AS((Server{other, given}), doctest::Contains("`ps-tasks`"), Error);
  given.task = 2;
  CHECK_THROWS_AS((Server{config, given}), Error);
}

TEST_CASE("memory: a shard bound to a node prefers it on its pages, an impossible node is a warning") {
  JobConfig config = config_of({.workers = 2, .ps_tasks = 1});
  config.numa = Numa::kNodes;
  config.numa_nodes = {0};
  std::vector<std::string> warnings;
  ServerOptions given;
  given.log = [&](const std::string& line) { warnings.push_back(line); };
  {
    Server server(config, given);
    Worker worker(options(config));
    declare(worker, {spec("v", {100'000})});
    const int node = JobView(config.job).info().tasks[0].node;
    if (warnings.empty()) {
      CHECK(node == 0);
      CHECK(JobView(config.job).variables()[0].parts[0].node == 0);
      shm::AttachOutcome outcome;
      const auto job = shm::JobSegments::try_attach(config.job, shm::Access::kReadWrite, outcome);
      int policy = -1;
      unsigned long mask = 0;
      std::byte* page = job->shard_data(0) + job->shard_data_offset();
      REQUIRE(syscall(SYS_get_mempolicy, &policy, &mask, 65UL, page, MPOL_F_ADDR) == 0);
      CHECK(policy == MPOL_PREFERRED);
      CHECK((mask & 1) == 1);
    } else {  // a container that may not call mbind
      CHECK(warnings.size() == 1);
      CHECK(node == -1);
    }
  }
  for (const std::uint32_t impossible : {63U, 64U, 1000U}) {
    CAPTURE(impossible);
    config.job = test::unique_job_name();
    config.numa_nodes = {impossible};
    warnings.clear();
    Server server(config, given);
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0].find(std::to_string(impossible)) != std::string::npos);
    CHECK(JobView(config.job).info().tasks[0].node == -1);
    Worker worker(options(config));
    CHECK(declare(worker, {spec("v", {100})}).size() == 1);
  }
}

TEST_CASE("memory: without huge pages, a request for them gives one warning per shard that names the file") {
  JobConfig config = config_of({.workers = 2, .ps_tasks = 1});
  config.huge_pages = true;
  std::vector<std::string> warnings;
  ServerOptions given;
  given.log = [&](const std::string& line) { warnings.push_back(line); };
  Server server(config, given);
  Worker worker(options(config));
  declare(worker, {spec("v", {1'000'000})});
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string words;
  std::getline(file, words);
  const bool refused =
      words.empty() || words.find("[never]") != std::string::npos || words.find("[deny]") != std::string::npos;
  CHECK(JobView(config.job).info().tasks[0].huge_pages == !refused);
  CHECK(warnings.size() == (refused ? 1 : 0));
  if (refused) CHECK(warnings.at(0).find("/sys/kernel/mm/transparent_hugepage/shmem_enabled") != std::string::npos);
}

TEST_CASE("memory: the bytes that a view counts are those of the files, whatever the job's configuration") {
  for (const auto& [mode, reduce, placement] : {std::tuple{Mode::kAsync, Reduce::kOrdered, Placement::kPartition},
                                                std::tuple{Mode::kSync, Reduce::kOrdered, Placement::kGreedy},
                                                std::tuple{Mode::kSync, Reduce::kAtomic, Placement::kPartition}}) {
    JobConfig config = config_of({.workers = 2, .ps_tasks = 3, .placement = placement});
    const JobName name(config.job);
    config.mode = mode;
    config.reduce = reduce;
    config.threads = 2;
    config.workers = 1;
    config.optimizer.rule = UpdateRule::kAdam;
    config.optimizer.ema = 0.9F;
    Server server(config);
    Worker worker(options(config));
    const auto variables =
        declare(worker, {spec("w", {1000, 33}, UpdateRule::kAdam), spec("b", {33}, UpdateRule::kAdam), spec("s", {})});
    worker.push(variables[0], std::vector<float>(33'000, 1.0F));
    worker.step();
    std::uint64_t files = 0;
    for (const std::string& segment : name.segments()) {
      struct stat info {};
      REQUIRE(stat(("/dev/shm/" + segment).c_str(), &info) == 0);
      files += static_cast<std::uint64_t>(info.st_size);
    }
    const JobInfo info = JobView(config.job).info();
    CHECK(info.bytes.total() == files);
    CHECK(info.bytes.values == (33'000 + 33 + 1) * 4);
    CHECK(info.bytes.slots == 3 * (33'000 + 33) * 4);
    CHECK((info.bytes.accumulators != 0) == (reduce == Reduce::kAtomic));
    CHECK((info.bytes.gradients != 0) == (mode == Mode::kSync && reduce == Reduce::kOrdered));
    std::uint64_t in_tasks = info.bytes.control + info.bytes.gradients;
    for (const TaskInfo& task : info.tasks) {
      CHECK(task.used_bytes <= task.file_bytes);
      in_tasks += task.file_bytes;
    }
    CHECK(in_tasks == files);
    CHECK(info.bytes.padding < files);
  }
}
