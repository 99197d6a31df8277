// Declaring variables and initializing them: which worker does it, and which one takes over when it dies.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "support/job.hpp"
#include "support/manual_clock.hpp"
#include "support/processes.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

// A worker of rank 0 that dies while it initializes v.
void die_initialising(const JobConfig& config) {
  Child child([&] {
    Worker worker(options(config, 0));
    worker.variable(vector_of(50'000), [](std::span<float> out) {
      std::fill(out.begin(), out.end(), 9.0F);
      raise(SIGKILL);
    });
    return 0;
  });
  REQUIRE(child.join() == -1);
}

void four(std::span<float> out) { std::fill(out.begin(), out.end(), 4.0F); }

bool is_all_four(Worker& worker, const Variable& variable) {
  std::vector<float> out = pulled(worker, variable);
  return out == std::vector<float>(50'000, 4.0F);
}

}  // namespace

TEST_CASE("another worker's variable is found by its name, an unknown one is not") {
  Job job({.workers = 2});
  Worker first = job.join(), second = job.join();
  first.variable(vector_of(4), zero);
  CHECK(second.variable("v").element_count() == 4);
  CHECK_THROWS_WITH_AS(second.variable("w", Seconds(0.05)), doctest::Contains("it has v"), Error);
  CHECK_THROWS_AS(second.variable("w", std::chrono::seconds(0)), Error);  // does not wait
  CHECK(second.variable("v", std::nullopt).element_count() == 4);
}

TEST_CASE("an initialiser that throws leaves the variable to the next one") {
  Job job({.workers = 2});
  Worker first = job.join(), second = job.join();
  CHECK_THROWS_AS(first.variable(vector_of(4), [](std::span<float>) { throw Error("no"); }), Error);
  float out[4];
  const Variable variable =
      second.variable(vector_of(4), [](std::span<float> v) { std::fill(v.begin(), v.end(), 6.0F); });
  second.pull(variable, out);
  CHECK(out[3] == 6.0F);
}

TEST_CASE("an initialiser that dies is replaced by another rank and by its own successor") {
  for (const std::uint32_t successor : {0U, 1U}) {
    CAPTURE(successor);
    Job job({.workers = 2});
    die_initialising(job.config);
    Worker worker = job.join(successor);
    CHECK_THROWS_WITH_AS(worker.variable("v", Seconds(0.05)), doctest::Contains("was not initialised"), Timeout);
    CHECK(is_all_four(worker, worker.variable(vector_of(50'000), four)));
  }
}

TEST_CASE("an initialiser that dies is replaced while its successor holds the rank and declares nothing") {
  Job job({.workers = 2});
  die_initialising(job.config);
  Worker successor = job.join(0);
  WorkerOptions given = job.options(1);
  const ManualClock clock(ManualClock::Sleeps::kPass);
  given.stop_requested = [&] { return clock.passed_ns() > 10 * kSecond; };
  Worker survivor(given);
  CHECK(
      is_all_four(survivor, survivor.variable(vector_of(50'000), four)));  // if interrupted: it waits for the successor
  CHECK(is_all_four(successor, successor.variable(vector_of(50'000), zero)));
}

TEST_CASE("a worker that waits for another one's initial values reports it") {
  Job job({.workers = 2});
  ManualClock clock;
  std::atomic<bool> has_begun{false}, was_said{false};
  std::string said;
  std::thread other([&] {
    Worker worker = job.join(0);
    worker.variable(vector_of(4), [&](std::span<float> out) {
      has_begun = true;
      while (!was_said && clock.passed_ns() < 60 * kSecond && clock.wait_for_sleepers(1)) clock.advance(kSecond);
      zero(out);
    });
  });
  WorkerOptions given = job.options(1);
  given.log = [&](const std::string& line) {
    if (!was_said) said = line;
    was_said = true;
  };
  Worker worker(given);
  CHECK(eventually([&] { return has_begun.load(); }));
  worker.variable(vector_of(4), zero);
  other.join();
  CHECK(said.find("worker 1: waiting for variable 'v' to be initialised") == 0);
}

TEST_CASE("one worker initialises, the others wait for it") {
  Job job({.workers = 4});
  std::atomic<int> calls{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number)
    threads.emplace_back([&] {
      Worker worker = job.join();
      const Variable variable = worker.variable(vector_of(50'000), [&](std::span<float> out) {
        ++calls;
        four(out);
      });
      wrong += !is_all_four(worker, variable);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(calls == 1);
  CHECK(wrong == 0);
}
