// Waiting for a fact: a wake is prompt, and a fact without one is noticed within a slice or two.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "shm/futex.hpp"

using namespace ps::shm;
using Clock = std::chrono::steady_clock;

namespace {

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

void nothing() {}

}  // namespace

TEST_CASE("wait: a fact that holds already needs no sleep") {
  AtomicShm<std::uint32_t> word{};
  int slices = 0;
  wait_for_fact(
      word, [] { return true; }, [&] { ++slices; });
  CHECK(slices == 0);
}

TEST_CASE("wait: a fact that nobody has announced is noticed after a slice") {
  AtomicShm<std::uint32_t> word{};
  int slices = 0;
  wait_for_fact(
      word, [&] { return slices == 1; }, [&] { ++slices; });
  CHECK(slices == 1);
}

TEST_CASE("wait: a fact stored in another thread without a wake is noticed within some slices") {
  AtomicShm<std::uint32_t> word{};
  std::atomic<bool> sleeping{false}, fact{false};
  Clock::time_point stored;
  std::thread other([&] {
    while (!sleeping) std::this_thread::yield();
    stored = Clock::now();
    fact = true;
  });
  wait_for_fact(
      word, [&] { return fact.load(); }, [&] { sleeping = true; });
  other.join();
  CHECK(ms_since(stored) < 50 * kWaitSliceMs);  // two slices and what a busy machine adds
}

TEST_CASE("wait: a slice that nobody ends takes its time and not more") {
  AtomicShm<std::uint32_t> word{};
  const auto start = Clock::now();
  futex_wait_slice(word, 0);
  CHECK(ms_since(start) >= 0.9 * kWaitSliceMs);
  CHECK(ms_since(start) < 50 * kWaitSliceMs);
}

TEST_CASE("wait: a word that has changed before the sleep does not let it begin") {
  AtomicShm<std::uint32_t> word{};
  word.fetch_add_acq_rel(kAnnouncement);
  const auto start = Clock::now();
  for (int i = 0; i < 100; ++i) futex_wait_slice(word, 0);
  CHECK(ms_since(start) < 100 * kWaitSliceMs / 2.0);
}

TEST_CASE("wait: a hundred announced facts come sooner than a hundred slices") {
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
  const auto start = Clock::now();
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
