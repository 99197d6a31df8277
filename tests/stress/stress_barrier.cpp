// Threads that go through many rounds, with and without deaths: all apply the same set of contributions, which are
// complete and belong to that round. The barrier's memory is one mapping, which the thread sanitizer needs; only the
// locks, which belong to a descriptor, are separate for each thread.
#include <doctest/doctest.h>

#include <atomic>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/member.hpp"
#include "support/stress.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::Member;
using test::TestJob;

namespace {

constexpr std::uint32_t kThreads = 4;
constexpr std::size_t kWords = 32;

struct Killed : std::runtime_error {
  Killed() : std::runtime_error("killed") {}
};

// The format of each word of a contribution: {round : 32, rank : 8, owner of the rank : 24}.
std::uint64_t payload(std::uint64_t round, std::uint32_t rank, std::uint64_t holder) {
  return round << 32 | std::uint64_t{rank} << 24 | holder;
}

struct Stage {
  TestJob job;
  std::uint64_t rounds;
  AtomicShm<std::uint64_t> contributions[kThreads][kWords] = {};
  std::vector<std::atomic<std::uint64_t>> sets;      // of each round, as read by the first to apply it
  std::vector<std::atomic<std::uint64_t>> contents;  // of each round and rank, likewise
  std::atomic<int> different_sets{0}, wrong_payloads{0}, different_payloads{0}, empty_sets{0};

  Stage(const JobConfig& settings, std::uint64_t count)
      : job(settings), rounds(count), sets(count), contents(count * kThreads) {}

  // The first to arrive sets the expected value.
  static bool agrees(std::atomic<std::uint64_t>& fact, std::uint64_t found) {
    std::uint64_t before = 0;
    return fact.compare_exchange_strong(before, found) || before == found;
  }

  // Reads all contributions; they count only if the round is still open afterwards (as a swap would check).
  void apply(const Barrier& barrier, std::uint64_t round, const RankSet& set) {
    different_sets += !agrees(sets[round], set.bits[0]);
    empty_sets += set.bits[0] == 0;
    for (std::uint32_t rank = 0; rank < kThreads; ++rank) {
      if (!set.contains(rank)) continue;
      const std::uint64_t first = contributions[rank][0].load_relaxed();
      int wrong = first >> 24 != payload(round, rank, 0) >> 24;
      for (const auto& word : contributions[rank]) wrong += word.load_relaxed() != first;
      fence_acquire();
      if (barrier.round() != round) return;
      wrong_payloads += wrong;
      different_payloads += !agrees(contents[round * kThreads + rank], first);
    }
  }

  // One worker until it is killed, which happens at each point with the probability 1 / `deadly`; 0: never.
  void live(std::uint32_t rank, std::uint64_t deadly, std::mt19937_64& random) {
    const Member member(job, rank);
    Barrier barrier(job.segments, rank, 0);
    const auto maybe_die = [&] {
      if (deadly != 0 && random() % deadly == 0) throw Killed();
    };
    for (std::uint64_t round = barrier.round(); round < rounds; round = barrier.round()) {
      if (!barrier.has_arrived(round)) {
        maybe_die();
        fence_release();  // pairs with apply's: a reader of one of these words finds the earlier round over
        const std::uint64_t mine = payload(round, rank, job.segments.worker(rank).holders.load_acquire());
        for (std::size_t i = 0; i < kWords; ++i) contributions[rank][i].store_relaxed(mine);
        maybe_die();
        barrier.arrive(round);
      }
      maybe_die();
      const std::optional<Decision> decision = barrier.wait_decided(round, [&](const std::vector<std::uint32_t>&) {
        maybe_die();
        return false;
      });
      if (!decision) continue;
      apply(barrier, round, decision->contributors);
      maybe_die();
      barrier.open(round);
    }
  }

  void run(std::uint64_t seed, std::uint64_t deadly) {
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < kThreads; ++rank)
      threads.emplace_back([this, rank, seed, deadly] {
        std::mt19937_64 random(seed + rank);
        for (bool alive = false; !alive;) try {
            live(rank, deadly, random);
            alive = true;
          } catch (const Killed&) {
          }
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(job.segments.barrier(0).step.load_acquire() == rounds);
    CHECK(different_sets == 0);
    CHECK(wrong_payloads == 0);
    CHECK(different_payloads == 0);
    CHECK(empty_sets == 0);
  }
};

}  // namespace

TEST_CASE("barrier: threads go through many rounds, all in each") {
  Stage stage({.workers = kThreads}, test::stress_rounds(10'000));
  stage.run(test::stress_seed(), 0);
  for (const auto& set : stage.sets) REQUIRE(set == (1 << kThreads) - 1);
}

TEST_CASE("barrier: threads that die anywhere and come back never disagree about a round") {
  Stage stage({.workers = kThreads}, test::stress_rounds(2'000));
  stage.run(test::stress_seed(), 100);
}
