#include "train/log/straggler.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "support/manual_clock.hpp"

namespace {

using ps_shm::test::ManualClock;
using ps_shm::train::Delay;
using ps_shm::train::Straggler;

Delay times(double factor, double share = 1.0) {
  Delay delay;
  delay.factor = factor;
  delay.share = share;
  return delay;
}

// Which of the first steps are slowed down, if each wait takes exactly the requested time.
std::vector<bool> slowed(const Delay& delay, std::uint64_t seed, std::uint32_t rank, int steps) {
  Straggler straggler(delay, seed, rank);
  std::vector<bool> all;
  for (int i = 0; i < steps; ++i) {
    const double wait = straggler.wait_after(1.0);
    all.push_back(wait > 0);
    straggler.waited(wait);
  }
  return all;
}

}  // namespace

TEST_CASE("straggler: a factor multiplies the duration of a step's work") {
  Straggler straggler(times(10), 1, 0);
  CHECK(straggler.wait_after(0.002) == doctest::Approx(0.018));
  straggler.waited(0.018);
  CHECK(straggler.wait_after(1.0) == doctest::Approx(9.0));
}

TEST_CASE("straggler: a fixed delay does not depend on the work") {
  Delay delay;
  delay.seconds = 0.005;
  Straggler straggler(delay, 1, 0);
  for (const double work : {0.0, 1.0, 100.0}) {
    const double wait = straggler.wait_after(work);
    CHECK(wait == doctest::Approx(0.005));
    straggler.waited(wait);
  }
}

TEST_CASE("straggler: one that slept too long sleeps less the next times") {
  Straggler straggler(times(2), 1, 0);
  CHECK(straggler.wait_after(1.0) == doctest::Approx(1.0));
  straggler.waited(1.5);
  CHECK(straggler.wait_after(1.0) == doctest::Approx(0.5));
  straggler.waited(0.5);
  CHECK(straggler.wait_after(1.0) == doctest::Approx(1.0));
}

TEST_CASE("straggler: one that was stopped for an hour is slowed down again after one step") {
  Straggler straggler(times(2), 1, 0);
  straggler.waited(straggler.wait_after(1.0) + 3600.0);
  CHECK(straggler.wait_after(1.0) == 0.0);
  straggler.waited(0.0);
  CHECK(straggler.wait_after(1.0) == doctest::Approx(1.0));
}

TEST_CASE("straggler: a fraction of the steps is drawn by seed and rank") {
  const Delay delay = times(10, 0.1);
  const std::vector<bool> first = slowed(delay, 1, 0, 10000);
  const auto count = std::count(first.begin(), first.end(), true);
  CHECK(count > 850);  // five deviations around 1000
  CHECK(count < 1150);
  CHECK(slowed(delay, 1, 0, 10000) == first);
  CHECK(slowed(delay, 2, 0, 10000) != first);
  CHECK(slowed(delay, 1, 1, 10000) != first);
}

TEST_CASE("straggler: oversleeping in a slow step is made up for in the next slow one, not forgotten") {
  Straggler straggler(times(2, 0.5), 3, 0);
  double asked = 0, slow_steps = 0;
  for (int i = 0; i < 1000; ++i) {
    const double wait = straggler.wait_after(1.0);
    asked += wait;
    if (wait > 0) ++slow_steps;
    straggler.waited(wait > 0 ? wait + 0.25 : 0.0);
  }
  CHECK(asked == doctest::Approx(0.75 * slow_steps).epsilon(0.01));
}

TEST_CASE("straggler: none by default, and by a factor of one") {
  CHECK(Delay{}.is_none());
  CHECK(times(1).is_none());
  Straggler straggler({}, 1, 0);
  CHECK(!straggler.is_one());
  CHECK(straggler.slow_down([] { return true; }));  // it does not even ask
}

TEST_CASE("straggler: a wait ends early when a stop is requested") {
  Delay delay;
  delay.seconds = 60;
  Straggler straggler(delay, 1, 0);
  const ManualClock clock(ManualClock::Sleeps::kPass);
  int asked = 0;
  CHECK(!straggler.slow_down([&] { return ++asked == 5; }));
  CHECK(asked == 5);
  CHECK(clock.passed_ns() > 0);
  CHECK(clock.passed_ns() < ps_shm::test::kSecond);
}

TEST_CASE("straggler: a wait that nobody stops takes its full time") {
  Delay delay;
  delay.seconds = 60;
  Straggler straggler(delay, 1, 0);
  const ManualClock clock(ManualClock::Sleeps::kPass);
  CHECK(straggler.slow_down([] { return false; }));
  CHECK(clock.passed_ns() == 60 * ps_shm::test::kSecond);
}

TEST_CASE("straggler: work is this thread's processor time") {
  Straggler straggler(times(3), 1, 0);
  const ManualClock clock(ManualClock::Sleeps::kPass);
  const double before = ps_shm::train::thread_seconds();
  straggler.begin_work();
  const double begin = ps_shm::train::thread_seconds();
  while (ps_shm::train::thread_seconds() - begin < 0.005) {
  }
  const double worked = ps_shm::train::thread_seconds() - begin;
  CHECK(straggler.slow_down({}));
  const double most = ps_shm::train::thread_seconds() - before;
  CHECK(double(clock.passed_ns()) * 1e-9 > 2 * worked - 1e-8);
  CHECK(double(clock.passed_ns()) * 1e-9 < 2 * most);
}

TEST_CASE("straggler: a delay is written in the form in which it is read") {
  CHECK(times(10).to_string() == "10x");
  CHECK(times(2.5, 0.1).to_string() == "2.5x@0.1");
  Delay delay;
  delay.seconds = 0.005;
  CHECK(delay.to_string() == "5ms");
  delay.share = 0.25;
  CHECK(delay.to_string() == "5ms@0.25");
}

TEST_CASE("straggler: a delay is written as on a command line") {
  const auto text = [](double seconds, double factor, double share) {
    return Delay{.seconds = seconds, .factor = factor, .share = share}.to_string();
  };
  CHECK(text(0.002, 1, 1) == "2ms");
  CHECK(text(0.001, 1, 0.5) == "1ms@0.5");
  CHECK(text(100 * 1e-6, 1, 1) == "100us");
  CHECK(text(1.5, 1, 1) == "1.5s");
  CHECK(text(90, 1, 1) == "90s");
  CHECK(text(5e-10, 1, 1) == "5e-10");
  CHECK(text(1.0 / 3, 1, 1) == "0.3333333333333333");  // read back, it is the same
  CHECK(text(0, 10, 0.1) == "10x@0.1");
}
