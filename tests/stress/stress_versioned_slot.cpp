// Threads that push to and pull from the same chunks: every pulled chunk is consistent and has the reported version,
// and at the end every push has been applied exactly once. All threads use one mapping, which the thread sanitizer
// needs.
#include <doctest/doctest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "support/conservation.hpp"
#include "support/stress.hpp"
#include "support/test_job.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::TestJob;

namespace {

constexpr std::uint32_t kPushers = 4, kPullers = 2;

struct Failures {
  std::atomic<int> torn{0}, wrong_version{0}, backwards{0};
};

// Pulls chunks in turn until the pushers are done. Every element must equal the number of pushes that its version
// counts.
void pull_all(const std::vector<VersionedVariable>& variables, const std::atomic<std::uint32_t>& pushing,
              Failures& failures, std::atomic<std::uint64_t>& pulls) {
  std::vector<std::vector<std::uint64_t>> seen;
  for (const VersionedVariable& variable : variables) seen.emplace_back(variable.chunks());
  std::vector<float> out(1 << 14);
  while (pushing != 0)
    for (std::size_t v = 0; v < variables.size(); ++v)
      for (std::uint64_t chunk = 0; chunk < variables[v].chunks(); ++chunk) {
        std::uint64_t retries = 0;
        const std::uint64_t version = variables[v].pull_chunk(chunk, out.data(), retries);
        const std::size_t count = variables[v].chunk_size(chunk);
        for (std::size_t i = 1; i < count; ++i) failures.torn += out[i] != out[0];
        failures.wrong_version += out[0] != float(version);
        failures.backwards += version < seen[v][chunk];
        seen[v][chunk] = version;
        ++pulls;
      }
}

}  // namespace

TEST_CASE("versioned slot: no push of many threads is lost, and no pull is torn") {
  const std::uint64_t seed = test::stress_seed(), rounds = test::stress_rounds(100'000);
  TestJob job({.chunk_bytes = 1024});
  // Two variables of one class, so that a buffer moves from one to the other; few chunks, so that pushers collide.
  std::uint64_t sizes[2] = {};
  SUBCASE("of several chunks") { sizes[0] = 700, sizes[1] = 250; }
  SUBCASE("of one chunk, where they take turns") { sizes[0] = 240, sizes[1] = 7; }
  const std::vector<const VariableShm*> records = {&job.declare("a", sizes[0]), &job.declare("b", sizes[1])};
  REQUIRE(records[0]->buffer_class == records[1]->buffer_class);
  std::vector<VersionedVariable> variables;
  for (const VariableShm* record : records) variables.push_back(job.versioned(*record));

  Failures failures;
  std::atomic<std::uint32_t> pushing{kPushers};
  std::atomic<std::uint64_t> pulls{0}, retries{0};
  std::vector<std::vector<std::vector<std::uint64_t>>> done(kPushers);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kPushers; ++rank)
    threads.emplace_back([&, rank] {
      std::mt19937_64 random(seed + rank);
      FreeBuffers free_buffers(job.segments, rank);
      std::vector<VersionedVariable> targets = variables;
      std::vector<std::vector<std::uint64_t>> mine;
      for (const VersionedVariable& variable : variables) mine.emplace_back(variable.chunks());
      for (std::uint64_t push = 0; push < rounds; ++push) {
        const std::size_t v = random() % targets.size();
        const std::uint64_t chunk = random() % targets[v].chunks();
        const std::size_t count = targets[v].chunk_size(chunk);
        retries += targets[v]
                       .push_chunk(chunk, free_buffers, {.rank = rank, .step = push},
                                   [count](float* out, const float* in, ChunkPast) {
                                     for (std::size_t i = 0; i < count; ++i) out[i] = in[i] + 1;
                                   })
                       .retries;
        ++mine[v][chunk];
      }
      done[rank] = mine;
      --pushing;
    });
  for (std::uint32_t i = 0; i < kPullers; ++i)
    threads.emplace_back([&] { pull_all(variables, pushing, failures, pulls); });
  for (std::thread& thread : threads) thread.join();
  MESSAGE("pulls " << pulls.load() << ", lost swaps " << retries.load());

  CHECK(failures.torn == 0);
  CHECK(failures.wrong_version == 0);
  CHECK(failures.backwards == 0);
  for (std::size_t v = 0; v < variables.size(); ++v)
    for (std::uint64_t chunk = 0; chunk < variables[v].chunks(); ++chunk) {
      std::uint64_t pushed = 0, again = 0;
      for (std::uint32_t rank = 0; rank < kPushers; ++rank) pushed += done[rank][v][chunk];
      std::vector<float> out(variables[v].chunk_size(chunk));
      CHECK(variables[v].pull_chunk(chunk, out.data(), again) == pushed);
      CHECK(out.back() == float(pushed));
    }
  CHECK(test::is_conserved(job.segments, records));
}

TEST_CASE("versioned slot: in a sync step by many helpers each chunk gets one update") {
  const std::uint64_t steps = test::stress_rounds(20'000);
  TestJob job({.chunk_bytes = 1024});
  const VariableShm& record = job.declare("v", 1500);
  VersionedVariable variable = job.versioned(record);
  std::atomic<std::uint64_t> applied{0}, not_included{0};
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kPushers; ++rank)
    threads.emplace_back([&, rank] {
      FreeBuffers free_buffers(job.segments, rank);
      for (std::uint64_t step = 0; step < steps; ++step) {
        for (std::uint64_t i = 0; i < variable.chunks(); ++i) {  // afterwards all chunks include the step
          const std::uint64_t chunk = (i + rank) % variable.chunks();
          const std::size_t count = variable.chunk_size(chunk);
          const auto update = [count](float* out, const float* in, ChunkPast) {
            for (std::size_t k = 0; k < count; ++k) out[k] = in[k] + 1;
            return true;
          };
          applied += variable.apply_step(chunk, step, free_buffers, {.rank = rank, .step = step}, update) ==
                     StepResult::kApplied;
          not_included += !variable.includes(chunk, step);
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(applied == steps * variable.chunks());
  CHECK(not_included == 0);
  for (std::uint64_t chunk = 0; chunk < variable.chunks(); ++chunk) {
    std::uint64_t retries = 0;
    std::vector<float> out(variable.chunk_size(chunk));
    CHECK(variable.pull_chunk(chunk, out.data(), retries) == steps);
    for (const float value : out) REQUIRE(value == float(steps));
  }
  CHECK(test::is_conserved(job.segments, {&record}));
}
