// How a job ends: the reason, how the workers learn of it, and how the last process removes the job.
#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/steps/worker_table.hpp"
#include "support/job.hpp"
#include "support/manual_clock.hpp"
#include "support/test_job.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

// Ends as soon as it is asked to, without waiting for its workers.
const ServeHooks kAtOnce = {
    .stop_requested = [] { return true; }, .stop_at_once = [] { return true; }, .log = {}, .every_second = {}};

}  // namespace

TEST_CASE("ending: a worker that joins after its ps has checked for the last time is told that the job has ended") {
  const JobConfig config = config_of();
  const JobName name(config.job);
  {
    Server server(config);
    Worker(options(config)).step();
    CHECK(server.serve({}) == EndReason::kAllWorkersLeft);
    CHECK_THROWS_AS(Worker(options(config)), JobFinished);
  }
  CHECK(name.segments().empty());
}

TEST_CASE("ending: the last worker of a job that was asked to end removes it if no ps waits for it") {
  const JobConfig config = config_of();
  const JobName name(config.job);
  std::optional<Server> server(std::in_place, config);
  std::optional<Worker> worker(std::in_place, options(config));
  CHECK(server->serve(kAtOnce) == EndReason::kStopRequested);
  server.reset();
  CHECK_FALSE(name.segments().empty());
  worker.reset();
  CHECK(name.segments().empty());
}

TEST_CASE("ending: the first task that ends a job gives the reason, and the other ends for the same reason") {
  JobConfig config = config_of({.workers = 2, .linger = Seconds(100), .ps_tasks = 2});  // one of them never joins
  const JobName name(config.job);
  const ManualClock clock(ManualClock::Sleeps::kPass);
  {
    Server first(config, {.task = 0}), second(config, {.task = 1});
    Worker(options(config)).step();
    CHECK(first.serve({}) == EndReason::kLingerOver);
    CHECK(clock.passed_ns() >= 100 * kSecond);
    CHECK(clock.passed_ns() <= 100 * kSecond + kSlice);
    CHECK(second.serve({}) == EndReason::kLingerOver);
  }
  CHECK(name.segments().empty());
}

TEST_CASE("ending: a task that ends a job already ended by another reports that reason, and logs no event of its own") {
  JobConfig config = config_of({.ps_tasks = 2});
  const JobName name(config.job);
  Server first(config, {.task = 0}), second(config, {.task = 1});
  std::optional<Worker> worker(std::in_place, options(config));
  REQUIRE(first.serve(kAtOnce) == EndReason::kStopRequested);
  worker.reset();  // so that the second one would end it because all have left
  CHECK(second.serve({}) == EndReason::kStopRequested);
  CHECK(first.serve(kAtOnce) == EndReason::kStopRequested);
  int told = 0;
  for (const Event& event : JobView(config.job).events()) told += event.kind == "ended";
  CHECK(told == 1);
}

TEST_CASE("ending: a job continues until the last of its workers has left") {
  JobConfig config = config_of({.workers = 2});
  std::uint64_t steps = 1;
  SUBCASE("without a last step") {}
  SUBCASE("after its last step") { config.steps = steps = 2; }
  const JobName name(config.job);
  Server server(config);
  std::optional<Worker> first(std::in_place, options(config)), last(std::in_place, options(config));
  while (last->global_step() < steps) last->step();
  first.reset();
  CHECK(server.serve(kAtOnce) == EndReason::kStopRequested);
}

TEST_CASE("ending: a ps without a worker waits for one for the linger time") {
  JobConfig config = config_of({.workers = 2, .linger = Seconds(1000)});  // one of them never joins
  const JobName name(config.job);
  Server server(config);
  Worker(options(config)).step();
  CHECK(server.serve(kAtOnce) == EndReason::kStopRequested);
}

TEST_CASE("ending: a ps that is asked to end waits until its workers have left") {
  const JobConfig config = config_of();
  const JobName name(config.job);
  ManualClock clock;  // its patience never runs out
  Server server(config);
  std::optional<Worker> worker(std::in_place, options(config));
  bool has_waited = false;
  ServeHooks hooks = kAtOnce;
  hooks.stop_at_once = [&] {  // the ps asks while it waits
    CHECK(worker->finished());
    worker.reset();
    has_waited = true;
    return false;
  };
  CHECK(server.serve(hooks) == EndReason::kStopRequested);
  CHECK(has_waited);
}

TEST_CASE("ending: a ps that is asked to end names the workers that have not left after its patience") {
  const JobConfig config = config_of();
  const JobName name(config.job);
  Server server(config);
  const Worker worker(options(config));
  const ManualClock clock(ManualClock::Sleeps::kPass);
  std::string said;
  ServeHooks hooks;
  hooks.stop_requested = [] { return true; };
  hooks.log = [&](const std::string& line) { said += line; };
  CHECK(server.serve(hooks) == EndReason::kStopRequested);
  CHECK(said.find("not left yet") != std::string::npos);
  CHECK(clock.passed_ns() > 0);
}

TEST_CASE("ending: a ps runs its periodic tasks once a second") {
  JobConfig config = config_of({.workers = 2, .linger = Seconds(10)});  // one of them never joins
  const JobName name(config.job);
  const ManualClock clock(ManualClock::Sleeps::kPass);
  Server server(config);
  Worker(options(config)).step();
  int seconds = 0;
  ServeHooks hooks;
  hooks.every_second = [&] { ++seconds; };
  CHECK(server.serve(hooks) == EndReason::kLingerOver);
  CHECK(seconds >= 9);
  CHECK(seconds <= 10);
}

TEST_CASE("ending: a job that is kept remains, and a process that joins is told that it is over") {
  const JobConfig config = config_of();
  const JobName name(config.job);
  {
    Server server(config);
    Worker(options(config)).step();
    server.serve({});
    server.keep_segments();
    CHECK_THROWS_AS(Worker(options(config)), JobFinished);
  }
  CHECK(name.segments().size() == 2);
}

TEST_CASE("ending: a process that is refused releases its byte (names.N9)") {
  TestJob job;
  shm::JobSegments attached = job.attach();
  SUBCASE("a worker") {
    std::uint32_t rank;
    CHECK_THROWS_AS(static_cast<void>(shm::try_join(attached, {}, rank, [] { throw Error("refused"); })), Error);
    CHECK_FALSE(job.segments.locks().is_held_by_other(shm::kRankByte));
  }
  SUBCASE("a ps") {
    const auto refuse = [](shm::JobSegments&) { throw Error("refused"); };
    CHECK_THROWS_AS(static_cast<void>(attached.try_add_task(1, {}, refuse)), Error);
    CHECK_FALSE(job.segments.locks().is_held_by_other(shm::kTaskByte + 1));
  }
}

// A process that holds a byte when the ps ends keeps it from removing the job.
TEST_CASE("ending: a process that is refused while holding a byte removes the job if the ps is gone by then") {
  TestJob job;
  shm::JobSegments attached = job.attach();
  const auto end_and_refuse = [&] {
    job.segments.state().ended.store_release(1);
    job.segments.locks().release(shm::kTaskByte);
    REQUIRE(shm::remove_job(job.name.text(), job.segments.control().descriptor()) == shm::RemoveOutcome::kAlive);
    throw Error("refused");
  };
  SUBCASE("a worker") {
    std::uint32_t rank;
    CHECK_THROWS_AS(static_cast<void>(shm::try_join(attached, {}, rank, end_and_refuse)), Error);
  }
  SUBCASE("a ps") {
    const auto check = [&](shm::JobSegments&) { end_and_refuse(); };
    CHECK_THROWS_AS(static_cast<void>(attached.try_add_task(1, {}, check)), Error);
  }
  CHECK(job.name.segments().empty());
}
