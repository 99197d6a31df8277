// Threads that add to the same elements at different alignments: every sum is exact.
#include <doctest/doctest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "support/stress.hpp"
#include "support/test_job.hpp"
#include "update/elements.hpp"

using namespace ps;
using namespace ps::shm;
using test::TestJob;

namespace {

constexpr std::uint32_t kThreads = 4;

float add(float value, float delta) { return value + delta; }

}  // namespace

TEST_CASE("in-place slot: adds of overlapping ranges by many threads are all there") {
  const std::uint64_t seed = test::stress_seed(), rounds = test::stress_rounds(50'000);
  constexpr std::size_t kFloats = 40;
  alignas(16) float values[kFloats] = {};
  std::vector<std::vector<std::uint64_t>> added(kThreads, std::vector<std::uint64_t>(kFloats));
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(seed + thread);
      const std::vector<float> ones(kFloats, 1);
      for (std::uint64_t round = 0; round < rounds; ++round) {
        const std::size_t begin = random() % kFloats, count = random() % (kFloats - begin) % 10;
        update_exact(values + begin, ones.data(), count, add);
        for (std::size_t i = 0; i < count; ++i) ++added[thread][begin + i];
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < kFloats; ++i) {
    std::uint64_t expected = 0;
    for (const auto& mine : added) expected += mine[i];
    CHECK(values[i] == float(expected));
  }
}

TEST_CASE("in-place slot: pushes of blocks by many threads are all there and counted, and pulls see whole elements") {
  const std::uint64_t rounds = test::stress_rounds(500);
  TestJob job;
  const VariableShm& record = job.declare("v", 4096 + 7, 0, Layout::kInplace);
  InplaceVariable variable(job.segments.shard_data(0), record);
  std::atomic<std::uint32_t> pushing{kThreads};
  std::atomic<int> not_whole{0};
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&] {
      const std::vector<float> ones(record.piece_elements, 1);
      for (std::uint64_t round = 0; round < rounds; ++round)
        for (std::uint64_t block = 0; block < variable.blocks(); ++block)
          variable.push_block(block, ones.data(), Adds::kExact, add);
      --pushing;
    });
  threads.emplace_back([&] {
    std::vector<float> out(record.piece_elements);
    while (pushing != 0) {
      const std::uint64_t pushed = variable.pull_block(0, out.data(), update::FirstFloat{});
      // A count of pushes is a small whole number, and what was counted before the pull is in it.
      for (const float value : out)
        not_whole += value < float(pushed) || value > float(kThreads * rounds) || value != float(std::uint64_t(value));
    }
  });
  for (std::thread& thread : threads) thread.join();
  CHECK(not_whole == 0);
  for (std::uint64_t block = 0; block < variable.blocks(); ++block) CHECK(variable.pushes(block) == kThreads * rounds);
  for (std::uint64_t i = 0; i < record.elements; ++i) REQUIRE(variable.elements()[i] == float(kThreads * rounds));
}

TEST_CASE("in-place slot: pushes of a scalar by many threads are all there and counted, value and count agree") {
  const std::uint64_t rounds = test::stress_rounds(100'000);
  TestJob job;
  const VariableShm& record = job.declare("v", 1, 0, Layout::kInplace);
  InplaceVariable variable(job.segments.shard_data(0), record);
  const std::uint32_t start = 0u - static_cast<std::uint32_t>(rounds);  // the counter goes round meanwhile
  job.word(record, 0).store_release(make_scalar(start, 0));
  std::atomic<std::uint32_t> pushing{kThreads};
  std::atomic<std::uint64_t> disagree{0}, sum_of_counts{0};
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&] {
      std::uint64_t counts = 0;
      for (std::uint64_t round = 0; round < rounds; ++round)
        counts += static_cast<std::uint32_t>(variable.push_scalar(1, Adds::kExact, add)) - start;
      sum_of_counts += counts;
      --pushing;
    });
  threads.emplace_back([&] {
    while (pushing != 0) {
      float value = -1;
      const auto pushed = static_cast<std::uint32_t>(variable.pull_scalar(value));
      disagree += value != float(pushed - start);
    }
  });
  for (std::thread& thread : threads) thread.join();
  const std::uint64_t all = kThreads * rounds;
  CHECK(disagree == 0);
  CHECK(variable.elements()[0] == float(all));
  CHECK(static_cast<std::uint32_t>(variable.pushes(0)) - start == all);
  CHECK(sum_of_counts == all * (all - 1) / 2);  // each count was told once
}

TEST_CASE("in-place slot: racy pushes of a scalar by many threads are all counted" * doctest::skip(kThreadSanitizer)) {
  const std::uint64_t rounds = test::stress_rounds(100'000);
  TestJob job;
  const VariableShm& record = job.declare("v", 1, 0, Layout::kInplace);
  InplaceVariable variable(job.segments.shard_data(0), record);
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&] {
      for (std::uint64_t round = 0; round < rounds; ++round) variable.push_scalar(1, Adds::kRacy, add);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(variable.pushes(0) == kThreads * rounds);
  CHECK(variable.elements()[0] >= float(1));
  CHECK(variable.elements()[0] <= float(kThreads * rounds));
}
