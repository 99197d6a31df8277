// Published gradients of sync steps: once a worker has arrived its gradient counts, whatever happens to the worker.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "support/job.hpp"
#include "support/processes.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

const std::vector<float> kOnes(3, 1.0F), kTens(3, 10.0F);

std::vector<float> values(const JobConfig& config) { return JobView(config.job).values("v"); }

// Rank 0 has pushed ones and arrived, and its step() has thrown. Rank 1 has not arrived yet.
struct Interruption : Job {
  std::atomic<bool> stop{false};
  Worker first{stoppable()}, second = join(1);
  Variable of_first = first.variable(vector_of(3), zero), of_second = second.variable(vector_of(3), zero);

  explicit Interruption(Reduce reduce = Reduce::kOrdered) : Job({.workers = 2, .mode = Mode::kSync, .reduce = reduce}) {
    first.push(of_first, kOnes);
    stop = true;
    CHECK_THROWS_AS(first.step(), Interrupted);
    stop = false;
  }
  WorkerOptions stoppable() {
    WorkerOptions given = options(0);
    given.stop_requested = [this] { return stop.load(); };
    return given;
  }
};

}  // namespace

TEST_CASE("published gradient: a push after a step() that threw is refused and changes nothing") {
  for (const Reduce reduce : {Reduce::kOrdered, Reduce::kAtomic}) {
    Interruption job(reduce);
    CHECK_THROWS_WITH_AS(job.first.push(job.of_first, kOnes), doctest::Contains("call step() again"), Error);
    job.second.push(job.of_second, kTens);
    std::thread other([&] { job.second.step(); });
    CHECK(job.first.step() == 1);
    other.join();
    CHECK(values(job.config) == std::vector<float>(3, 11.0F));
    job.first.push(job.of_first, kOnes);  // of the next step
  }
}

TEST_CASE("published gradient: a step() that completes one that has thrown drops nothing, however late") {
  Interruption job;
  job.second.push(job.of_second, kTens);
  CHECK(job.second.step() == 1);
  CHECK_THROWS_AS(job.first.push(job.of_first, kOnes), Error);
  CHECK(job.first.step() == 1);
  CHECK(values(job.config) == std::vector<float>(3, 11.0F));
  CHECK(JobView(job.config.job).workers()[0].dropped == 0);
}

TEST_CASE("published gradient: a segment of another job of that name is not read (names.N4)") {
  Interruption job;
  shm::Segment segment;
  REQUIRE(segment.open(shm::gradient_name(job.config.job, 0, 1), shm::Access::kReadWrite) ==
          shm::AttachOutcome::kReady);
  segment.header().instance ^= 2;
  job.second.push(job.of_second, kTens);
  CHECK_THROWS_WITH_AS(job.second.step(), doctest::Contains("gradient segment of rank 0"), Error);
  segment.header().instance ^= 2;
  CHECK(job.second.step() == 1);
  CHECK(values(job.config) == std::vector<float>(3, 11.0F));
}

TEST_CASE("published gradient: a worker that leaves hands it over to the step (barrier.B4)") {
  Interruption job;
  job.first.leave();
  job.second.push(job.of_second, kTens);
  CHECK(job.second.step() == 1);
  CHECK(values(job.config) == std::vector<float>(3, 11.0F));
}

TEST_CASE("published gradient: a successor that joins before the step is over keeps it (barrier.B4)") {
  const JobConfig config = config_of({.workers = 2, .mode = Mode::kSync});
  const JobName name(config.job);
  Server server(config);
  shm::AttachOutcome outcome;
  const auto job = shm::JobSegments::try_attach(config.job, shm::Access::kReadWrite, outcome);
  REQUIRE(job);
  const shm::WorkerShm& entry = job->worker(0);
  Child child([&] {
    Worker worker(options(config, 0));
    worker.push(worker.variable(vector_of(3), zero), kOnes);
    worker.step();
    return 0;
  });
  REQUIRE(eventually([&] { return entry.barriers[0].published.load_acquire() == 1; }));
  child.kill();
  std::thread successor([&] { Worker(options(config, 0)).leave(); });
  const auto waits = [&] {
    return entry.holders.load_acquire() == 2 &&
           entry.waiting_for.load_acquire() == static_cast<std::uint32_t>(shm::WaitingFor::kStep);
  };
  const auto has_own_segment = [&] { return entry.barriers[0].generation.load_acquire() == 2; };
  CHECK(eventually([&] { return waits() || has_own_segment(); }));
  CHECK_FALSE(has_own_segment());
  Worker second(options(config, 1));
  second.push(second.variable(vector_of(3), zero), kTens);
  CHECK(second.step() == 1);
  successor.join();
  CHECK(values(config) == std::vector<float>(3, 11.0F));
}
