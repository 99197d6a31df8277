// Threads that fill the same accumulators and apply their sums: no contribution is lost or counted twice, and no reader
// gets an inconsistent sum. All threads use one mapping, which the thread sanitizer needs.
#include <doctest/doctest.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "shm/base/racing.hpp"
#include "support/conservation.hpp"
#include "support/job.hpp"
#include "support/processes.hpp"
#include "support/stress.hpp"
#include "support/test_job.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::TestJob;

namespace {

constexpr std::uint32_t kThreads = 4;

// Powers of two: the sum tells which ranks are included, and each as often as the digit says (base 16).
float digit(std::uint32_t rank) { return float(1 << 4 * rank); }

struct Meeting {
  std::atomic<std::uint64_t> arrived{0};
  void wait(std::uint64_t round) {
    ++arrived;
    while (arrived < (round + 1) * kThreads) std::this_thread::yield();
  }
};

}  // namespace

TEST_CASE("accumulator: contributions by many threads are each included once, and set and sum always agree") {
  const std::uint64_t seed = test::stress_seed(), steps = test::stress_rounds(2'000);
  TestJob job({.chunk_bytes = 1024});
  const VariableShm& record = job.declare("sum", 600);
  VersionedVariable sum = job.versioned(record);
  std::atomic<std::uint64_t> wrong{0}, refused{0}, incomplete{0};
  std::atomic<bool> done{false};
  Meeting added, checked;
  const auto check = [&](std::uint64_t chunk, std::uint64_t step, std::uint32_t expected) {
    int bad = 0;
    bool complete = false;
    while (!sum.try_use_sum(chunk, step, [&](const float* values, const RankSet& ranks) {
      float whole = 0;
      for (std::uint32_t rank = 0; rank < kThreads; ++rank)
        if (ranks.contains(rank)) whole += digit(rank);
      bad = 0;
      for (std::uint64_t i = 0; i < sum.chunk_size(chunk); ++i) bad += values[i] != whole;
      complete = ranks.size() == expected;
    }))
      bad = 0;
    wrong += bad != 0;
    return complete;
  };
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kThreads; ++rank)
    threads.emplace_back([&, rank] {
      std::mt19937_64 random(seed + rank);
      FreeBuffers free_buffers(job.segments, rank);
      for (std::uint64_t step = 0; step < steps; ++step) {
        const std::uint64_t start = random() % sum.chunks();
        for (std::uint64_t i = 0; i < sum.chunks(); ++i) {
          const std::uint64_t chunk = (start + i) % sum.chunks(), count = sum.chunk_size(chunk);
          const auto add = [&](float* out, const float* in) {
            for (std::uint64_t k = 0; k < count; ++k) out[k] = (in == nullptr ? 0 : in[k]) + digit(rank);
          };
          refused += sum.contribute(chunk, free_buffers, {rank, step}, false, add) != ContributeResult::kAdded;
          // A successor that does it again adds nothing.
          refused += sum.contribute(chunk, free_buffers, {rank, step}, false, add) != ContributeResult::kAlreadyIn;
        }
        added.wait(step);
        for (std::uint64_t chunk = 0; chunk < sum.chunks(); ++chunk) incomplete += !check(chunk, step, kThreads);
        checked.wait(step);
      }
    });
  threads.emplace_back([&] {  // reads what is not complete yet
    for (std::uint64_t chunk = 0; !done; chunk = (chunk + 1) % sum.chunks())
      check(chunk, checked.arrived / kThreads, kThreads);
  });
  for (std::uint32_t rank = 0; rank < kThreads; ++rank) threads[rank].join();
  done = true;
  threads.back().join();
  CHECK(wrong == 0);
  CHECK(refused == 0);
  CHECK(incomplete == 0);
  CHECK(test::is_conserved(job.segments, {&record}));
}

TEST_CASE("accumulator: late threads do not change later steps") {
  const std::uint64_t seed = test::stress_seed(), rounds = test::stress_rounds(20'000);
  TestJob job;
  const VariableShm& record = job.declare("sum", 100);
  VersionedVariable sum = job.versioned(record);
  std::atomic<std::uint64_t> step{0}, wrong{0}, late{0};
  std::atomic<std::uint32_t> running{kThreads};
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kThreads; ++rank)
    threads.emplace_back([&, rank] {
      std::mt19937_64 random(seed + rank);
      FreeBuffers free_buffers(job.segments, rank);
      for (std::uint64_t i = 0; i < rounds; ++i) {
        const std::uint64_t now = step, mine = now - std::min<std::uint64_t>(now, random() % 3);
        const std::uint64_t count = sum.chunk_size(0);
        late += sum.contribute(0, free_buffers, {rank, mine}, false, [&](float* out, const float* in) {
          for (std::uint64_t k = 0; k < count; ++k) out[k] = (in == nullptr ? float(mine) : in[k]);
        }) == ContributeResult::kTooLate;
        if (random() % 4 == 0) ++step;
      }
      --running;
    });
  threads.emplace_back([&] {
    while (running != 0) {
      const std::uint64_t now = step;
      int bad = 0;
      if (sum.try_use_sum(0, now, [&](const float* values, const RankSet&) {
            for (std::uint64_t i = 0; i < sum.chunk_size(0); ++i) bad += values[i] != float(now);
          }))
        wrong += bad != 0;
    }
  });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(late > 0);
  CHECK(test::is_conserved(job.segments, {&record}));
}

TEST_CASE("reduce atomic: the sum over all steps and workers is exact, and no gradient segment exists") {
  const std::uint64_t steps = test::stress_rounds(400);
  test::Job job({.workers = kThreads, .mode = Mode::kSync, .reduce = Reduce::kAtomic});
  std::atomic<int> gradient_segments{0};
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kThreads; ++rank)
    threads.emplace_back([&, rank] {
      Worker worker = job.join(rank);
      const Variable sums = worker.variable({.name = "sums", .shape = {5000}, .rule = UpdateRule::kAdd}, test::zero);
      const Variable means = worker.variable({.name = "means", .shape = {700}, .rule = UpdateRule::kSgd}, test::zero);
      std::vector<float> gradient(5000);
      for (std::uint64_t step = 0; step < steps; ++step) {
        for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = float((rank + step + i) % 5);
        worker.push(sums, gradient);
        worker.push(means, std::vector<float>(700, float(4 * rank)));
        worker.step();
      }
      gradient_segments += int(!list_segments(control_name(job.name.text()) + ".w").empty());
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(gradient_segments == 0);
  const std::vector<float> found = job.view().values("sums");
  std::uint64_t different = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    std::uint64_t expected = 0;
    for (std::uint64_t step = 0; step < steps; ++step)
      for (std::uint32_t rank = 0; rank < kThreads; ++rank) expected += (rank + step + i) % 5;
    different += found[i] != float(expected);
  }
  CHECK(different == 0);
  // The mean of 0, 4, 8 and 12 at the default rate, step by step.
  float mean = 0;
  for (std::uint64_t step = 0; step < steps; ++step) mean -= default_lr(UpdateRule::kSgd) * 6.0F;
  CHECK(job.view().values("means") == std::vector<float>(700, mean));
}

TEST_CASE("reduce atomic: workers killed at any moment leave whole chunks, and the others and successors continue") {
  const std::uint64_t seed = test::stress_seed(), kills = test::stress_rounds(40);
  test::Job job({.workers = 2, .mode = Mode::kSync, .reduce = Reduce::kAtomic});
  std::mt19937_64 random(seed);
  const auto live = [&](std::uint32_t rank, std::uint64_t steps, const test::Bell* ready) {
    Worker worker = job.join(rank);
    const Variable variable = worker.variable({.name = "v", .shape = {20'000}, .rule = UpdateRule::kAdd}, test::zero);
    const std::vector<float> ones(20'000, digit(rank));
    for (std::uint64_t step = 0; step < steps; ++step) {
      worker.push(variable, ones);
      worker.step();
      if (ready != nullptr && step == 0) ready->tell();
    }
    return 0;
  };
  const test::Bell alive;
  test::Child partner([&] { return live(0, ~std::uint64_t{0}, nullptr); });
  for (std::uint64_t kill = 0; kill < kills; ++kill) {
    const test::Bell ready;
    test::Child victim([&] { return live(1, ~std::uint64_t{0}, &ready); });
    REQUIRE(ready.hear());
    usleep(static_cast<useconds_t>(random() % 3000));  // the kill may come at any moment: no result depends on the time
    victim.kill();
    const std::uint64_t before = job.server.global_step();
    CHECK(test::eventually([&] { return job.server.global_step() > before + 2; }));
  }
  partner.kill();
  // Each chunk is consistent: its elements went through the same sums.
  const JobView view = job.view();
  const VariableInfo info = view.variables().at(0);
  const std::vector<float> values = view.values("v");
  std::uint64_t torn = 0;
  for (std::uint64_t i = 0; i < values.size(); ++i)
    torn += values[i] != values[i / info.parts[0].chunk_elements * info.parts[0].chunk_elements];
  CHECK(torn == 0);
}
