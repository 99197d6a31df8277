// Waiting for a condition: a wake ends the sleep, and a condition that changes without a wake is noticed after a slice.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <stdexcept>
#include <thread>
#include <vector>

#include "shm/base/futex.hpp"
#include "support/manual_clock.hpp"
#include "support/processes.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::kSlice;
using test::ManualClock;
using SteadyClock = std::chrono::steady_clock;

namespace {

double ms_since(SteadyClock::time_point start) {
  return std::chrono::duration<double, std::milli>(SteadyClock::now() - start).count();
}

void nothing() {}

}  // namespace

TEST_CASE("durations: any number of seconds becomes nanoseconds that can be added to the time") {
  CHECK(to_ns(1.5) == 1'500'000'000);
  CHECK(to_ns(0) == 0);
  CHECK(to_ns(-1) == 0);
  CHECK(to_ns(std::numeric_limits<double>::quiet_NaN()) == 0);
  for (const double forever : {1e300, std::numeric_limits<double>::infinity()}) {
    CHECK(to_ns(forever) == 3'000'000'000'000'000'000);
    CHECK(monotonic_ns() + to_ns(forever) > monotonic_ns());
  }
}

TEST_CASE("wait: a condition that already holds needs no sleep") {
  AtomicShm<std::uint32_t> word{};
  int slices = 0;
  wait_for_fact(
      word, [] { return true; }, [&] { ++slices; });
  CHECK(slices == 0);
}

TEST_CASE("wait: an unannounced condition is noticed after a slice") {
  AtomicShm<std::uint32_t> word{};
  int slices = 0;
  wait_for_fact(
      word, [&] { return slices == 1; }, [&] { ++slices; });
  CHECK(slices == 1);
}

TEST_CASE("wait: a condition stored by another thread without a wake is noticed after one slice") {
  ManualClock clock;
  AtomicShm<std::uint32_t> word{};
  std::atomic<bool> fact{false};
  int sleeps = 0;
  std::thread waiter([&] {
    wait_for_fact(
        word, [&] { return fact.load(); }, [&] { ++sleeps; });
  });
  CHECK(clock.wait_for_sleepers(1));
  fact = true;
  clock.advance(kSlice);
  waiter.join();
  CHECK(sleeps == 1);
}

TEST_CASE("wait: a slice without a wake takes its time and not more") {
  AtomicShm<std::uint32_t> word{};
  const auto start = SteadyClock::now();
  futex_wait_slice(word, 0);
  CHECK(ms_since(start) >= 0.9 * kWaitSliceMs);
  ManualClock clock;
  std::atomic<bool> is_over{false};
  std::thread sleeper([&] {
    futex_wait_slice(word, 0);
    is_over = true;
  });
  CHECK(clock.wait_for_sleepers(1));
  clock.advance(kSlice - 1);
  CHECK(clock.sleepers() == 1);
  CHECK_FALSE(is_over);
  clock.advance(1);
  sleeper.join();
}

TEST_CASE("wait: a word that has changed before the sleep prevents it") {
  AtomicShm<std::uint32_t> word{};
  word.fetch_add_acq_rel(kAnnouncement);
  const auto sleeps = [] {  // how often this thread has given up its core to wait
    rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
  };
  const long before = sleeps();
  for (int i = 0; i < 100; ++i) futex_wait_slice(word, 0);
  CHECK(sleeps() - before < 100);
}

TEST_CASE("wait: each announced condition ends a sleep before its slice is over") {
  constexpr int kFacts = 10;
  ManualClock clock;
  AtomicShm<std::uint32_t> word{};
  std::atomic<int> asked{0}, answered{0};
  std::thread other([&] {
    for (int i = 1; i <= kFacts; ++i) {
      wait_for_fact(
          word, [&] { return asked >= i; }, nothing);
      answered = i;
    }
  });
  int woken = 0;
  for (int i = 1; i <= kFacts; ++i) {
    CHECK(clock.wait_for_sleepers(1));
    asked = i;
    futex_announce(word);
    if (!test::eventually([&] { return answered >= i; })) break;
    ++woken;
  }
  CHECK(woken == kFacts);
  CHECK(clock.passed_ns() == 0);
  asked = kFacts;
  clock.let_sleeps_pass();
  other.join();
}

TEST_CASE("wait: an announcement wakes all that sleep for it") {
  ManualClock clock;
  AtomicShm<std::uint32_t> word{};
  std::atomic<bool> fact{false};
  std::atomic<int> woken{0};
  std::vector<std::thread> sleepers;
  for (int i = 0; i < 3; ++i)
    sleepers.emplace_back([&] {
      wait_for_fact(
          word, [&] { return fact.load(); }, nothing);
      ++woken;
    });
  CHECK(clock.wait_for_sleepers(3));
  fact = true;
  futex_announce(word);
  CHECK(test::eventually([&] { return woken == 3; }));
  CHECK(clock.passed_ns() == 0);
  clock.let_sleeps_pass();
  for (std::thread& sleeper : sleepers) sleeper.join();
}

TEST_CASE("wait: a hundred announced conditions take less time than a hundred slices" * doctest::test_suite("timing")) {
  constexpr int kFacts = 100;
  AtomicShm<std::uint32_t> ping{}, pong{};
  std::atomic<int> asked{0}, answered{0};
  std::thread other([&] {
    for (int i = 1; i <= kFacts; ++i) {
      wait_for_fact(
          ping, [&] { return asked >= i; }, nothing);
      answered = i;
      futex_announce(pong);
    }
  });
  const auto start = SteadyClock::now();
  for (int i = 1; i <= kFacts; ++i) {
    asked = i;
    futex_announce(ping);
    wait_for_fact(
        pong, [&] { return answered >= i; }, nothing);
  }
  other.join();
  CHECK(ms_since(start) < kFacts * kWaitSliceMs);
}

TEST_CASE("wait: what each slice throws ends the wait") {
  AtomicShm<std::uint32_t> word{};
  CHECK_THROWS_AS(wait_for_fact(
                      word, [] { return false; }, [] { throw std::runtime_error("deadline"); }),
                  std::runtime_error);
}
