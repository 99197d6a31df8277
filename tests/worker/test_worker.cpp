// Server and Worker as a user's program sees them; workers are threads, each with its own attachment.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "support/job.hpp"
#include "support/manual_clock.hpp"
#include "support/processes.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

TEST_CASE("pull gives back the initial values, whatever the size") {
  Job job;
  Worker worker = job.join();
  for (const std::uint64_t size : {1, 2, 100, 4079, 4080, 4081, 100'003}) {
    const Variable variable =
        worker.variable({.name = "v" + std::to_string(size), .shape = {size}, .layout = {}}, [](std::span<float> out) {
          for (std::size_t i = 0; i < out.size(); ++i) out[i] = float(i);
        });
    std::vector<float> out = pulled(worker, variable);
    CHECK(out.front() == 0.0F);
    CHECK(out.back() == float(size - 1));
  }
}

TEST_CASE("moved objects continue to work, and their values are there as bytes and in the inspector") {
  Job job;
  Server server = std::move(job.server);
  Worker worker = job.join();
  const Variable scalar = worker.variable({.name = "s", .rule = UpdateRule::kAdd}, zero);
  const Variable vector = worker.variable(vector_of(3), zero);
  {
    PushGroup group = worker.group_pushes();
    const PushGroup moved = std::move(group);
    const float one[] = {1, 2, 3};
    worker.push(scalar, std::span(one).first(1));
    worker.push(vector, one);
  }
  float out = 0;
  worker.pull(scalar, std::as_writable_bytes(std::span(&out, 1)));
  CHECK(out == 1);
  const JobView view = job.view();
  CHECK(view.values("v") == std::vector<float>{1, 2, 3});
  CHECK_THROWS_WITH_AS(view.slot("v", "m"), doctest::Contains("variable 'v' has no slot 'm' of elements; it has none"),
                       Error);
  CHECK(server.global_step() == 0);
}

TEST_CASE("pushes of several workers are all applied") {
  for (const auto& way : {std::pair{Mode::kAsync, Layout::kVersioned}, std::pair{Mode::kAsync, Layout::kInplace},
                          std::pair{Mode::kSync, Layout::kVersioned}}) {
    const Mode mode = way.first;
    const Layout layout = way.second;
    CAPTURE(to_string(mode));
    CAPTURE(to_string(layout));
    Job job({.workers = 3, .mode = mode, .layout = layout});
    std::vector<std::thread> threads;
    for (int number = 0; number < 3; ++number)
      threads.emplace_back([&] {
        Worker worker = job.join();
        const Variable variable = worker.variable(vector_of(20'000), zero);
        const std::vector<float> ones(20'000, 1.0F);
        for (int step = 0; step < 100; ++step) {
          worker.push(variable, ones);
          worker.step();
        }
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(job.view().values("v") == std::vector<float>(20'000, 300.0F));
    CHECK(job.server.global_step() == (mode == Mode::kSync ? 100 : 300));
  }
}

TEST_CASE("staleness counts the updates by others between pull and push, not one's own") {
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace}) {
    Job job({.workers = 2, .layout = layout});
    Worker first = job.join(), second = job.join();
    const Variable a = first.variable(vector_of(1), zero), b = second.variable(vector_of(1), zero);
    const float one = 1.0F;
    float out = 0;
    first.pull(a, {&out, 1});
    for (int i = 0; i < 5; ++i) second.push(b, {&one, 1});
    first.push(a, {&one, 1});
    CHECK(first.staleness().max == 5);
    first.push(a, {&one, 1});
    CHECK(first.staleness().max == 5);
    CHECK(first.staleness().mean == 5.0);
  }
}

TEST_CASE("a view of an in-place variable shows pushes without a copy") {
  Job job({.layout = Layout::kInplace});
  Worker worker = job.join();
  const Variable variable = worker.variable(vector_of(100), zero);
  const std::span<const float> view = variable.view();
  worker.push(variable, std::vector<float>(100, 3.0F));
  CHECK(view[99] == 3.0F);
}

TEST_CASE("a versioned variable has no view") {
  Job job;
  Worker worker = job.join();
  CHECK_THROWS_AS(static_cast<void>(worker.variable(vector_of(4), zero).view()), Error);
}

TEST_CASE("a span of another size is refused") {
  Job job;
  Worker worker = job.join();
  const Variable variable = worker.variable(vector_of(4), zero);
  std::vector<float> five(5);
  CHECK_THROWS_AS(worker.pull(variable, five), Error);
  CHECK_THROWS_AS(worker.push(variable, five), Error);
}

TEST_CASE("a variable with a different declaration is refused") {
  Job job;
  Worker worker = job.join();
  worker.variable(vector_of(4), zero);
  CHECK_THROWS_AS(worker.variable(vector_of(5), zero), Error);
  CHECK_THROWS_AS(worker.variable(vector_of(4, UpdateRule::kSgd), zero), Error);
}

TEST_CASE("the barrier lets nobody pass before all have arrived") {
  Job job({.workers = 3});
  std::atomic<int> arrived{0}, early{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < 3; ++number)
    threads.emplace_back([&] {
      Worker worker = job.join();
      for (int round = 1; round <= 50; ++round) {
        ++arrived;
        worker.barrier();
        early += arrived < 3 * round;
        worker.barrier();
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(early == 0);
}

TEST_CASE("waiting for the workers ends when the last one has joined, and reports how many are missing") {
  Job job({.workers = 3});
  std::string said;
  std::atomic<bool> was_said{false};
  WorkerOptions given = job.options();
  given.log = [&](const std::string& line) {
    if (!was_said) said = line;
    was_said = true;
  };
  Worker first(given), second(job.options());
  std::atomic<bool> is_over{false};
  std::thread waiter([&] {
    first.wait_for_workers();
    is_over = true;
  });
  CHECK(test::eventually([&] { return was_said.load(); }));
  CHECK(!is_over);
  const Worker third = job.join();
  waiter.join();
  CHECK(is_over);
  CHECK(said == "worker 0: waiting for 1 of 3 workers to join");
}

TEST_CASE("the worker of the lowest rank is the last one: it waits for the others to leave or die, and names them") {
  Job job({.workers = 3});
  std::string said;
  std::atomic<bool> was_said{false}, is_last{false};
  WorkerOptions given = job.options();
  given.log = [&](const std::string& line) {
    if (!was_said) said = line;
    was_said = true;
  };
  Worker first(given);
  const test::Bell joined;
  test::Child stopped([&] {
    const Worker second = job.join();
    joined.tell();
    test::sleep_forever();
    return 0;
  });
  REQUIRE(joined.hear());
  stopped.stop();
  Worker third = job.join();
  CHECK(!third.wait_to_be_last());
  std::thread waiter([&] { is_last = first.wait_to_be_last(); });
  CHECK(test::eventually([&] { return was_said.load(); }));
  CHECK(said == "worker 0: waiting for ranks 1 (stopped), 2 to leave");
  CHECK(job.view().workers().at(0).waiting_for == "the other workers to leave");
  third.leave();
  CHECK(!is_last);
  stopped.kill();
  waiter.join();
  CHECK(is_last);
}

TEST_CASE("a wait to be the last one is woken by the last one to leave, and ends when its caller wants to stop") {
  const JobConfig config = config_of({.workers = 2});
  ManualClock clock;  // the end of a sleep does not wake it
  Server server(config);
  WorkerOptions given = options(config);
  std::atomic<bool> stop{false}, is_last{false};
  given.stop_requested = [&] { return stop.load(); };
  Worker first(given);
  {
    Worker second(options(config));
    std::thread waiter([&] { is_last = first.wait_to_be_last(); });
    CHECK(clock.wait_for_sleepers(1));
    second.leave();
    waiter.join();
    CHECK(is_last);
  }
  const Worker second(options(config));
  stop = true;
  CHECK_THROWS_AS(first.wait_to_be_last(), Interrupted);
}

TEST_CASE("a wait ends when its caller wants to stop") {
  Job job({.workers = 2});  // the second one never joins
  WorkerOptions given = job.options();
  std::atomic<bool> stop{false};
  given.stop_requested = [&] { return stop.load(); };
  Worker worker(given);
  std::thread stopper([&] { stop = true; });
  CHECK_THROWS_AS(worker.barrier(), Interrupted);
  stopper.join();
}

TEST_CASE("a sync step continues after its time-out, names the worker it leaves out, and stops waiting for it") {
  JobConfig config = config_of({.workers = 2, .mode = Mode::kSync, .step_timeout = Seconds(5)});
  ManualClock clock(ManualClock::Sleeps::kPass);
  Server server(config);
  std::vector<std::string> said;
  WorkerOptions talking = options(config);
  talking.log = [&](const std::string& line) { said.push_back(line); };
  Worker first(talking), second(options(config));
  const Variable variable = first.variable(vector_of(1), zero);
  const Variable theirs = second.variable(vector_of(1), zero);
  std::vector<float> pulled = test::pulled(second, theirs);
  for (int step = 0; step < 50; ++step) {
    first.push(variable, std::vector<float>(1, 1.0F));
    first.step();
  }
  REQUIRE(said.size() == 1);
  CHECK(clock.passed_ns() >= 5 * kSecond);
  CHECK(clock.passed_ns() <= 5 * kSecond + kSlice);  // 49 steps did not wait
  CHECK(said.front().find("goes on without rank 1") != std::string::npos);
  CHECK(first.global_step() == 50);

  SUBCASE("its late gradient is dropped; from then on it is waited for again") {
    second.push(theirs, std::vector<float>(1, 100.0F));
    second.step();
    CHECK(JobView(config.job).values("v").front() == 50.0F);
    CHECK(JobView(config.job).workers()[1].dropped == 1);
    clock.set(ManualClock::Sleeps::kBlock);  // no time-out from here on
    std::thread other([&] {
      first.push(variable, std::vector<float>(1, 1.0F));
      first.step();
    });
    second.pull(theirs, pulled);
    second.push(theirs, std::vector<float>(1, 1.0F));
    second.step();
    other.join();
    CHECK(said.size() == 1);
    CHECK(JobView(config.job).values("v").front() == 52.0F);
  }
  SUBCASE("events report it") {
    int left_out = 0;
    for (const Event& event : JobView(config.job).events()) left_out += event.kind == "left-out" && event.rank == 1U;
    CHECK(left_out == 1);
  }
}

TEST_CASE("a barrier gives up after its time-out and names the workers that it waited for") {
  JobConfig config = config_of({.workers = 2, .step_timeout = Seconds(10)});
  const ManualClock clock(ManualClock::Sleeps::kPass);
  Server server(config);
  Worker first(options(config)), second(options(config));
  CHECK_THROWS_WITH_AS(first.barrier(), doctest::Contains("rank 1"), Timeout);
  CHECK(clock.passed_ns() >= 10 * kSecond);
  CHECK(clock.passed_ns() <= 10 * kSecond + kSlice);
}

TEST_CASE("after a barrier that threw, the next call ends the barrier at which the worker has arrived") {
  JobConfig config = config_of({.workers = 2, .step_timeout = Seconds(10)});
  const ManualClock clock(ManualClock::Sleeps::kPass);
  Server server(config);
  bool stop = false;
  WorkerOptions given = options(config);
  given.stop_requested = [&] { return stop; };
  Worker first(given), second(options(config));
  for (const bool is_interrupted : {false, true}) {
    CAPTURE(is_interrupted);
    const auto arrive = [&] {
      stop = is_interrupted;
      CHECK_THROWS_WITH_AS(first.barrier(), doctest::Contains(is_interrupted ? "interrupted" : "rank 1"), Error);
      stop = false;
    };
    arrive();
    second.barrier();  // before the second call
    first.barrier();
    arrive();
    arrive();
    second.barrier();  // behind the second call
    first.barrier();
    CHECK_THROWS_WITH_AS(second.barrier(), doctest::Contains("rank 0"), Error);  // both are at the same one
    first.barrier();
    second.barrier();
  }
}

TEST_CASE("a second push in one sync step is added to the first") {
  Job job({.mode = Mode::kSync});
  Worker worker = job.join();
  const Variable variable = worker.variable(vector_of(3), zero);
  const std::vector<float> ones(3, 1.0F);
  worker.push(variable, ones);
  worker.push(variable, ones);
  worker.step();
  CHECK(job.view().values("v") == std::vector<float>(3, 2.0F));
}

TEST_CASE("a sync step applies what was pushed and does not change the other variables") {
  Job job({.mode = Mode::kSync});
  Worker worker = job.join();
  const Variable pushed = worker.variable(vector_of(3), zero);
  worker.variable({.name = "other", .shape = {3}, .rule = UpdateRule::kAdd, .layout = {}}, zero);
  worker.push(pushed, std::vector<float>(3, 1.0F));
  worker.step();
  worker.step();
  CHECK(job.view().values("v") == std::vector<float>(3, 1.0F));
  CHECK(job.view().values("other") == std::vector<float>(3, 0.0F));
  CHECK(worker.global_step() == 2);
}

TEST_CASE("an impossible rank is refused") {
  Job job;
  WorkerOptions beyond = job.options();
  beyond.rank = 4'000'000'000;
  CHECK_THROWS_WITH_AS(Worker{beyond}, doctest::Contains("rank 4000000000 is out of range: ranks are 0 to "), Error);
}

TEST_CASE("a worker of a job that is over is told so") {
  JobConfig config = config_of({.steps = 2});
  Server server(config);
  {
    Worker worker(options(config));
    worker.step();
    CHECK(!worker.finished());
    worker.step();
    CHECK(worker.finished());
  }
  CHECK_THROWS_AS(Worker(options(config)), JobFinished);
}

TEST_CASE("a forked child that exits normally does not affect its parent's worker and job") {
  const JobConfig config = config_of();
  auto server = std::make_unique<Server>(config);
  auto worker = std::make_unique<Worker>(options(config));
  const Variable variable = worker->variable(vector_of(4), zero);
  const pid_t child = fork();
  if (child == 0) {
    worker.reset();
    server.reset();
    _exit(7);
  }
  int status = 0;
  waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
  CHECK(JobView(config.job).workers().at(0).state == WorkerState::kAlive);
  worker->push(variable, std::vector<float>(4, 1.0F));
  CHECK(JobView(config.job).values("v") == std::vector<float>(4, 1.0F));
}

TEST_CASE("invalid settings are refused") {
  const auto broken = [](auto change) {
    JobConfig config = config_of();
    change(config);
    CHECK_THROWS_AS(check(config), Error);
  };
  broken([](JobConfig& c) { c.workers = 0; });
  broken([](JobConfig& c) { c.workers = kMaxWorkers + 1; });
  broken([](JobConfig& c) { c.max_workers = 1, c.workers = 2; });
  broken([](JobConfig& c) { c.mode = Mode::kSync, c.layout = Layout::kInplace; });
  broken([](JobConfig& c) { c.optimizer.lr = -1; });
  broken([](JobConfig& c) { c.optimizer.lr = NAN; });
  broken([](JobConfig& c) { c.optimizer.l2 = -1; });
  broken([](JobConfig& c) { c.linger = Seconds(-1); });
  broken([](JobConfig& c) { c.job = "a/b"; });
  broken([](JobConfig& c) { c.job = ""; });
  broken([](JobConfig& c) { c.job = std::string(65, 'a'); });
  broken([](JobConfig& c) { c.job = "a.0"; });
}
