// The guarantees of each mode to a worker: staleness bounds, quorums, atomic reduction.
#include <doctest/doctest.h>

#include <atomic>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "config/modes.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_control.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "support/conservation.hpp"
#include "support/job.hpp"
#include "support/manual_clock.hpp"
#include "support/processes.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

WorkerInfo info_of(const JobConfig& config, std::uint32_t rank) {
  for (const WorkerInfo& worker : JobView(config.job).workers())
    if (worker.rank == rank) return worker;
  return {};
}

// A worker's step() that may have to wait, in its own thread. The clock stands still, so a step that returns by itself
// was woken.
struct Stepping {
  ManualClock& clock;
  std::atomic<bool> done{false};
  std::thread thread;

  Stepping(ManualClock& clock, Worker& worker)
      : clock(clock), thread([this, &worker] {
          try {
            worker.step();
            done = true;
          } catch (const Error&) {  // the clock was released after a failure
          }
        }) {}
  ~Stepping() {
    if (!done) clock.let_sleeps_pass();
    thread.join();
  }
  // Whether it sleeps again after each of four slices.
  bool is_waiting() const {
    for (int slice = 0; slice < 4; ++slice) {
      if (!clock.wait_for_sleepers(1)) return false;
      clock.advance(kSlice);
    }
    return clock.wait_for_sleepers(1) && !done;
  }
  bool ends() const {
    return test::eventually([&] { return done.load(); });
  }
};

}  // namespace

TEST_CASE("modes: every row is found by its number and its name, and nothing else is") {
  for (const ModeTraits& row : kModes) {
    CHECK(find_mode(static_cast<std::uint32_t>(row.mode)) == &row);
    CHECK(mode_named(to_string(row.mode)) == row.mode);
  }
  CHECK(find_mode(0) == nullptr);
  CHECK(find_mode(std::size(kModes) + 1) == nullptr);
  CHECK_FALSE(mode_named("hogwild").has_value());
  CHECK(std::string(to_string(Mode{99})) == "unknown");
  CHECK(mode_names() == "async, ssp or sync");
}

TEST_CASE("modes: async and ssp can be exchanged in a running job, sync cannot be changed") {
  CHECK(may_change_live(Mode::kAsync, Mode::kSsp));
  CHECK(may_change_live(Mode::kSsp, Mode::kAsync));
  CHECK_FALSE(may_change_live(Mode::kSync, Mode::kAsync));
  CHECK_FALSE(may_change_live(Mode::kAsync, Mode::kSync));
}

TEST_CASE("modes: a step of sync has the pushes of the quorum, or of all workers; in other modes it has one") {
  CHECK(pushes_of_step(config_of({.workers = 4})) == 1);
  CHECK(pushes_of_step(config_of({.workers = 4, .mode = Mode::kSsp})) == 1);
  JobConfig config = config_of({.workers = 4, .mode = Mode::kSync});
  CHECK(pushes_of_step(config) == 4);
  config.quorum = 3;
  CHECK(pushes_of_step(config) == 3);
}

TEST_CASE("ssp: with a sufficiently large bound no worker ever waits") {
  ManualClock clock;
  Job job({.workers = 2, .mode = Mode::kSsp, .staleness = 1000});
  Worker fast = job.join(), slow = job.join();
  for (int step = 0; step < 1000; ++step) fast.step();
  CHECK(info_of(job.config, 0).max_clock_skew == 1000);
  Stepping beyond(clock, fast);
  CHECK(beyond.is_waiting());
  CHECK(test::eventually([&] { return info_of(job.config, 0).waiting_for.find("rank 1") != std::string::npos; }));
  slow.step();
  CHECK(beyond.ends());
  CHECK(info_of(job.config, 0).max_clock_skew == 1000);
  CHECK(info_of(job.config, 1).max_clock_skew == 0);
}

TEST_CASE("ssp: a worker that leaves lets the others continue") {
  ManualClock clock;
  Job job({.workers = 2, .mode = Mode::kSsp});
  Worker fast = job.join(), slow = job.join();
  Stepping step(clock, fast);
  CHECK(step.is_waiting());
  slow.leave();
  CHECK(step.ends());
}

TEST_CASE("ssp: a stopped worker blocks the others, its death lets them continue") {
  ManualClock clock;
  Job job({.workers = 2, .mode = Mode::kSsp, .staleness = 1});
  const test::Bell ready;
  test::Child child([&] {
    Worker worker = job.join(1);
    ready.tell();
    test::sleep_forever();
    return 0;
  });
  REQUIRE(ready.hear());
  Worker worker = job.join(0);
  worker.step();
  child.stop();
  Stepping step(clock, worker);
  CHECK(step.is_waiting());
  child.kill();
  clock.advance(kSlice);  // a death wakes nobody: it is found after one slice, and the condition checked after another
  CHECK(clock.wait_for_sleepers(1));
  clock.advance(kSlice);
  CHECK(step.ends());
  for (int i = 0; i < 100; ++i) worker.step();
}

TEST_CASE("ssp: a late joiner starts at the slowest worker's step, and blocks nobody") {
  Job job({.mode = Mode::kSsp, .staleness = 2});
  Worker first = job.join();
  for (int step = 0; step < 500; ++step) first.step();
  const Worker late = job.join();
  CHECK(info_of(job.config, 1).clock == 500);
  first.step();
  first.step();
  CHECK(info_of(job.config, 0).max_clock_skew == 2);
}

TEST_CASE("ssp: a wait beyond the time-out names the worker that it waited for") {
  Job job({.workers = 2, .mode = Mode::kSsp, .step_timeout = Seconds(30)});
  Worker fast = job.join(), slow = job.join();
  const ManualClock clock(ManualClock::Sleeps::kPass);
  CHECK_THROWS_WITH_AS(fast.step(), doctest::Contains("rank 1"), Timeout);
  CHECK(clock.passed_ns() >= 30 * kSecond);
  CHECK(clock.passed_ns() <= 30 * kSecond + kSlice);
}

TEST_CASE("ssp: the job's last step and its end wake waiting workers") {
  ManualClock clock;
  JobConfig config = config_of({.workers = 2, .mode = Mode::kSsp, .steps = 2});
  Server server(config);
  Worker fast(options(config)), slow(options(config));
  Stepping step(clock, fast);
  CHECK(step.is_waiting());
  slow.step();  // the last step
  CHECK(step.ends());
  CHECK(fast.finished());
}

TEST_CASE("ssp: the end of a job lets a waiting worker continue, although its peer has not moved") {
  ManualClock clock;
  const JobConfig config = config_of({.workers = 2, .mode = Mode::kSsp});
  Server server(config);
  Worker fast(options(config)), slow(options(config));
  Stepping step(clock, fast);
  CHECK(step.is_waiting());
  ServeHooks hooks;
  hooks.stop_requested = hooks.stop_at_once = [] { return true; };
  CHECK(server.serve(hooks) == EndReason::kStopRequested);
  CHECK(step.ends());
  CHECK(fast.finished());
}

TEST_CASE("ssp: a change to async, or of the bound, lets a waiting worker continue") {
  ManualClock clock;
  for (const bool to_async : {true, false}) {
    CAPTURE(to_async);
    Job job({.workers = 2, .mode = Mode::kSsp});
    Worker fast = job.join(), slow = job.join();
    Stepping step(clock, fast);
    CHECK(step.is_waiting());
    JobControl control(job.name.text());
    control.change([&](LiveSettings& settings) {
      if (to_async)
        settings.mode = Mode::kAsync;
      else
        settings.staleness = 1;
    });
    CHECK(step.ends());
  }
}

TEST_CASE("ssp: after a change from async to ssp earlier steps block nobody, later ones do") {
  ManualClock clock;
  Job job({.workers = 2});
  Worker fast = job.join(), slow = job.join();
  for (int i = 0; i < 50; ++i) fast.step();
  JobControl(job.name.text()).change([](LiveSettings& settings) {
    settings.mode = Mode::kSsp;
    settings.staleness = 1;
  });
  CHECK(fast.live().mode == Mode::kSsp);
  slow.step();  // each enters at the end of its step
  fast.step();
  fast.step();
  Stepping step(clock, fast);
  CHECK(step.is_waiting());
  slow.step();
  CHECK(step.ends());
  CHECK(info_of(job.config, 0).max_clock_skew == 1);
}

TEST_CASE("sync: a variable declared after a step takes part from the next one on") {
  for (const Reduce reduce : {Reduce::kOrdered, Reduce::kAtomic}) {
    Job job({.mode = Mode::kSync, .reduce = reduce, .optimizer = {.lr = 1.0F}});
    Worker worker = job.join(0);
    std::vector<Variable> variables;
    for (int step = 0; step < 3; ++step) {
      const std::string name = "v" + std::to_string(step);
      variables.push_back(worker.variable({.name = name, .shape = {1000}, .rule = UpdateRule::kSgd}, zero));
      for (const Variable& variable : variables) worker.push(variable, std::vector<float>(1000, 1.0F));
      worker.step();
    }
    const JobView view = job.view();
    CHECK(view.values("v0") == std::vector<float>(1000, -3.0F));
    CHECK(view.values("v1") == std::vector<float>(1000, -2.0F));
    CHECK(view.values("v2") == std::vector<float>(1000, -1.0F));
  }
}

TEST_CASE("sync: a variable initialised during a step takes part from the next one on") {
  for (const Reduce reduce : {Reduce::kOrdered, Reduce::kAtomic}) {
    Job job({.workers = 2, .mode = Mode::kSync, .quorum = 1, .reduce = reduce, .optimizer = {.lr = 1.0F}});
    Worker steps = job.join(0), declares = job.join(1);
    declares.variable(vector_of(1000, UpdateRule::kSgd), [&](std::span<float> out) {
      steps.step();  // the variable is declared
      zero(out);
    });
    const Variable variable = steps.variable("v");
    steps.push(variable, std::vector<float>(1000, 1.0F));
    steps.step();
    CHECK(job.view().values("v") == std::vector<float>(1000, -1.0F));
  }
}

TEST_CASE("quorum: a gradient that comes too late is dropped and counted, and is in no later step") {
  Job job({.workers = 2, .mode = Mode::kSync, .quorum = 1});
  Worker first = job.join(), late = job.join();
  const Variable a = first.variable(vector_of(10), zero), b = late.variable(vector_of(10), zero);
  late.push(b, std::vector<float>(10, 100.0F));
  first.push(a, std::vector<float>(10, 1.0F));
  CHECK(first.step() == 1);
  CHECK(job.view().values("v") == std::vector<float>(10, 1.0F));
  CHECK(late.step() == 1);
  CHECK(info_of(job.config, 1).dropped == 1);
  CHECK(info_of(job.config, 0).dropped == 0);
  CHECK(info_of(job.config, 1).steps == 0);  // a dropped gradient is no step
  CHECK(info_of(job.config, 0).steps == 1);
  late.push(b, std::vector<float>(10, 2.0F));
  CHECK(late.step() == 2);
  CHECK(job.view().values("v") == std::vector<float>(10, 3.0F));
  first.push(a, std::vector<float>(10, 4.0F));
  CHECK(first.step() == 3);
  CHECK(job.view().values("v") == std::vector<float>(10, 7.0F));
  CHECK(info_of(job.config, 1).dropped == 1);
}

TEST_CASE("quorum: a gradient belongs to the step whose values were pulled for it, however late it is pushed") {
  Job job({.workers = 2, .mode = Mode::kSync, .quorum = 1});
  Worker first = job.join(), late = job.join();
  const Variable a = first.variable(vector_of(3), zero), b = late.variable(vector_of(3), zero);
  std::vector<float> values = pulled(late, b);
  first.push(a, std::vector<float>(3, 1.0F));
  first.step();
  late.push(b, std::vector<float>(3, 8.0F));  // of step 0, which is over
  late.step();
  CHECK(info_of(job.config, 1).dropped == 1);
  CHECK(job.view().values("v") == std::vector<float>(3, 1.0F));
}

TEST_CASE("quorum: a job has as many steps as requested, even if a worker comes too late for the last one") {
  JobConfig config = config_of({.workers = 2, .mode = Mode::kSync, .quorum = 1, .steps = 3});
  Server server(config);
  Worker first(options(config)), late(options(config));
  const Variable a = first.variable(vector_of(4), zero), b = late.variable(vector_of(4), zero);
  REQUIRE_FALSE(late.finished());
  for (int step = 0; step < 3; ++step) {
    first.push(a, std::vector<float>(4, 1.0F));
    first.step();
  }
  late.push(b, std::vector<float>(4, 100.0F));
  late.step();
  CHECK(server.global_step() == 3);
  CHECK(JobView(config.job).values("v") == std::vector<float>(4, 3.0F));
}

TEST_CASE("quorum: with fewer live workers than the quorum the steps continue, and that is one event") {
  Job job({.workers = 3, .mode = Mode::kSync, .quorum = 3});
  Worker a = job.join();
  { const Worker left = job.join(), gone = job.join(); }
  const Variable variable = a.variable(vector_of(4), zero);
  for (int step = 0; step < 5; ++step) {
    a.push(variable, std::vector<float>(4, 1.0F));
    a.step();
  }
  CHECK(job.view().values("v") == std::vector<float>(4, 5.0F));
  int told = 0;
  for (const Event& event : job.view().events()) told += event.kind == "short-quorum";
  CHECK(told == 1);
}

TEST_CASE("reduce atomic: a late gradient does not change a later step") {
  Job job({.workers = 2, .mode = Mode::kSync, .quorum = 1, .reduce = Reduce::kAtomic});
  Worker first = job.join(), late = job.join();
  const Variable a = first.variable(vector_of(3000), zero), b = late.variable(vector_of(3000), zero);
  first.push(a, std::vector<float>(3000, 1.0F));
  first.step();
  late.push(b, std::vector<float>(3000, 8.0F));  // for step 1, in time
  first.push(a, std::vector<float>(3000, 2.0F));
  first.step();
  CHECK(job.view().values("v") == std::vector<float>(3000, 11.0F));
  late.step();
  CHECK(info_of(job.config, 1).dropped == 1);  // it was in the sum, but not in the decision
  first.push(a, std::vector<float>(3000, 4.0F));
  first.step();
  CHECK(job.view().values("v") == std::vector<float>(3000, 15.0F));
}

TEST_CASE("reduce atomic: a sum that only a late worker has added to is not applied") {
  Job job({.workers = 2, .mode = Mode::kSync, .quorum = 1, .reduce = Reduce::kAtomic});
  Worker first = job.join(), late = job.join();
  first.variable(vector_of(3), zero);
  late.push(late.variable(vector_of(3), zero), std::vector<float>(3, 8.0F));
  first.step();
  CHECK(job.view().values("v") == std::vector<float>(3, 0.0F));
}

TEST_CASE("reduce atomic: the mean is over the workers that pushed, a variable without pushes is unchanged") {
  Job job({.workers = 3, .mode = Mode::kSync, .reduce = Reduce::kAtomic, .optimizer = {.lr = 1.0F}});
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      Worker worker = job.join(rank);
      const Variable all = worker.variable(vector_of(5000, UpdateRule::kSgd), zero);
      const Variable two = worker.variable({.name = "two", .shape = {5}, .rule = UpdateRule::kSgd}, zero);
      worker.variable({.name = "none", .shape = {5}, .rule = UpdateRule::kSgd}, zero);
      for (int step = 0; step < 10; ++step) {
        worker.push(all, std::vector<float>(5000, float(3 * rank)));
        if (rank != 0) worker.push(two, std::vector<float>(5, float(4 * rank)));
        worker.push(all, std::vector<float>(5000, 1.0F));  // a second one counts as the same contributor
        worker.step();
      }
    });
  for (std::thread& thread : threads) thread.join();
  const JobView view = job.view();
  CHECK(view.values("v") == std::vector<float>(5000, -40.0F));
  CHECK(view.values("two") == std::vector<float>(5, -60.0F));
  CHECK(view.values("none") == std::vector<float>(5, 0.0F));
  CHECK(shm::list_segments(shm::control_name(job.name.text()) + ".w").empty());
  CHECK(test::is_conserved(job.name.text()));
}
