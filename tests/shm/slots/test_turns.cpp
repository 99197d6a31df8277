// Two processes that push to a variable of one chunk take turns by a hint in shared memory (versioned_slot.hpp). Only
// speed depends on it: whatever the hint contains and whichever process is stopped, no push is lost and the others
// continue.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <chrono>
#include <new>
#include <optional>
#include <random>
#include <vector>

#include "support/conservation.hpp"
#include "support/processes.hpp"
#include "support/stress.hpp"
#include "support/test_job.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::Child;
using test::eventually;
using test::TestJob;

namespace {

constexpr std::uint64_t kElements = 200;
constexpr std::uint32_t kFree = 0, kWanted = 1, kGranted = 2;  // values of the hint

auto add_one(std::uint64_t floats) {
  return [floats](float* out, const float* in, ChunkPast) {
    for (std::size_t i = 0; i < floats; ++i) out[i] = in[i] + 1;
  };
}

AtomicShm<std::uint32_t>& hint_of(const JobSegments& segments, const VariableShm& record) {
  return reinterpret_cast<PieceWordShm*>(segments.shard_data(0) + record.words_offset)->wanted;
}
VariableShm& record_in(JobSegments& segments) {
  const Directory directory(segments);
  return directory.at(directory.find("v"));
}

// What the processes of a test share: how often each has pushed.
struct Tally {
  std::array<std::atomic<std::uint64_t>, 3> pushes;
  std::atomic<bool> is_over;
};

class SharedTally {
 public:
  SharedTally() {
    void* memory = mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    tally_ = new (memory) Tally{};
  }
  ~SharedTally() { munmap(tally_, sizeof(Tally)); }
  SharedTally(const SharedTally&) = delete;
  SharedTally& operator=(const SharedTally&) = delete;
  Tally* operator->() const { return tally_; }

 private:
  Tally* tally_;
};

// A variable of one chunk, and processes that push to it all the time.
struct Hammered {
  TestJob job;
  VariableShm& record = job.declare("v", kElements);
  AtomicShm<std::uint32_t>& hint = hint_of(job.segments, record);
  SharedTally tally;
  std::array<std::optional<Child>, 2> writers;

  Hammered() { REQUIRE(record.pieces == 1); }

  // In its own process, with its own mapping.
  int push_until_over(std::uint32_t rank) {
    JobSegments attached = job.attach();
    VersionedVariable variable(attached.shard(0), record_in(attached));
    FreeBuffers free_buffers(attached, rank);
    while (!tally->is_over) {
      variable.push_chunk(0, free_buffers, {.rank = rank}, add_one(kElements));
      ++tally->pushes[rank];
    }
    return 0;
  }
  void start() {
    for (std::uint32_t rank = 0; rank < 2; ++rank) writers[rank].emplace([&, rank] { return push_until_over(rank); });
    for (std::uint32_t rank = 0; rank < 2; ++rank) REQUIRE(gets_on(rank));
  }
  void stop(std::uint32_t rank) { writers[rank]->stop(); }
  void resume(std::uint32_t rank) { REQUIRE(kill(writers[rank]->pid(), SIGCONT) == 0); }

  // Whether the writer makes a thousand more pushes within the patience of a test.
  bool gets_on(std::uint32_t rank) {
    const std::uint64_t before = tally->pushes[rank];
    return eventually([&] { return tally->pushes[rank] >= before + 1000; });
  }
  // Lets the two make this many more pushes, so that a stop or a kill finds the turn in a different state each time.
  void let_push(std::uint64_t pushes) {
    const auto made = [&] { return tally->pushes[0] + tally->pushes[1]; };
    for (const std::uint64_t before = made(); made() < before + pushes;) spin_pause();
  }
  // Ends the writers; every push must be there, once, and so must every buffer.
  void check_end() {
    tally->is_over = true;
    std::uint64_t pushed = 0;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      resume(rank);
      CHECK(writers[rank]->join() == 0);
      pushed += tally->pushes[rank];
    }
    std::vector<float> out(kElements);
    std::uint64_t retries = 0;
    CHECK(job.versioned(record).pull_chunk(0, out.data(), retries) == pushed);
    for (const float value : out) REQUIRE(value == out[0]);
    if (pushed < 1 << 24) CHECK(out[0] == float(pushed));  // beyond this a float cannot count
    CHECK(test::is_conserved(job.segments, {&record}));
  }
};

double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A thousand pushes; the hint is altered before each. Every tenth is overtaken three times, so that it waits for a
// turn, which nobody grants.
void push_with_hint(TestJob& job, VariableShm& record, std::uint32_t altered) {
  AtomicShm<std::uint32_t>& hint = hint_of(job.segments, record);
  VersionedVariable variable = job.versioned(record);
  FreeBuffers free_buffers(job.segments, 0), others(job.segments, 1);
  int calls = 0;
  for (int push = 0; push < 1000; ++push) {
    hint.store_relaxed(altered);
    variable.push_chunk(0, free_buffers, {}, [&](float* out, const float* in, ChunkPast past) {
      if (push % 10 == 0 && ++calls % 4 != 0) {
        variable.push_chunk(0, others, {}, add_one(kElements));
        hint.store_relaxed(altered);
      }
      add_one(kElements)(out, in, past);
    });
  }
}

}  // namespace

TEST_CASE("turns: a process that pushes alone leaves no hint") {
  TestJob job;
  VariableShm& record = job.declare("v", kElements);
  VersionedVariable variable = job.versioned(record);
  FreeBuffers free_buffers(job.segments, 0);
  for (int push = 0; push < 1000; ++push) variable.push_chunk(0, free_buffers, {}, add_one(kElements));
  CHECK(hint_of(job.segments, record).load_acquire() == kFree);
}

TEST_CASE("turns: whatever the hint contains, a push is applied once, and ends") {
  for (const std::uint32_t altered : {kFree, kWanted, kGranted, 3U, 0x7fffffffU, ~0U}) {
    CAPTURE(altered);
    TestJob job;
    VariableShm& record = job.declare("v", kElements);
    push_with_hint(job, record, altered);
    std::vector<float> out(kElements);
    std::uint64_t retries = 0;
    CHECK(job.versioned(record).pull_chunk(0, out.data(), retries) == 1300);
    CHECK(out == std::vector<float>(kElements, 1300));
    CHECK(test::is_conserved(job.segments, {&record}));
  }
}

TEST_CASE("turns: whatever the hint contains, a push waits for a turn no longer than with a free one" *
          doctest::test_suite("timing")) {
  const auto seconds_with = [](std::uint32_t altered) {
    TestJob job;
    VariableShm& record = job.declare("v", kElements);
    return seconds_of([&] { push_with_hint(job, record, altered); });
  };
  const double usual = seconds_with(kFree);
  for (const std::uint32_t altered : {kWanted, kGranted, 3U, 0x7fffffffU, ~0U}) {
    CAPTURE(altered);
    CHECK(seconds_with(altered) < 20 * usual);
  }
}

TEST_CASE("turns: a requested turn is granted after a streak, and revoked if nobody takes it") {
  TestJob job;
  VariableShm& record = job.declare("v", kElements);
  AtomicShm<std::uint32_t>& hint = hint_of(job.segments, record);
  VersionedVariable variable = job.versioned(record);
  FreeBuffers free_buffers(job.segments, 0);
  hint.store_relaxed(kWanted);  // by a process that has died since
  for (int push = 0; push < 1000; ++push) variable.push_chunk(0, free_buffers, {}, add_one(kElements));
  CHECK(hint.load_acquire() == kFree);
  CHECK(variable.version(0) == 1000);
}

TEST_CASE("turns: a variable of several chunks has none") {
  TestJob job;
  VariableShm& record = job.declare("v", 100'000);
  REQUIRE(record.pieces > 1);
  AtomicShm<std::uint32_t>& hint = hint_of(job.segments, record);
  VersionedVariable variable = job.versioned(record);
  FreeBuffers free_buffers(job.segments, 0);
  hint.store_relaxed(kWanted);
  for (int push = 0; push < 500; ++push) variable.push_chunk(0, free_buffers, {}, add_one(variable.chunk_size(0)));
  CHECK(hint.load_acquire() == kWanted);
}

TEST_CASE("turns: two processes that push all the time both make progress, and nothing is lost") {
  Hammered t;
  t.start();
  for (int round = 0; round < 20; ++round)
    for (const std::uint32_t rank : {0U, 1U}) REQUIRE(t.gets_on(rank));
  t.check_end();
}

TEST_CASE("turns: a stopped process, in whatever state the turn is, does not block the other") {
  std::mt19937_64 random(test::stress_seed());
  Hammered t;
  t.start();
  std::array<int, 3> seen = {};
  const std::uint64_t rounds = test::stress_rounds(200);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const std::uint32_t stopped = round % 2, other = 1 - stopped;
    t.let_push(random() % 1000);
    t.stop(other);
    t.stop(stopped);  // nobody changes the hint now
    const std::uint32_t found = t.hint.load_acquire();
    REQUIRE(found <= kGranted);
    ++seen[found];
    t.resume(other);
    REQUIRE(t.gets_on(other));
    t.resume(stopped);
    REQUIRE(t.gets_on(stopped));
  }
  MESSAGE("stopped while the turn was free " << seen[0] << ", wanted " << seen[1] << ", granted " << seen[2]);
  t.check_end();
}

TEST_CASE("turns: a process is stopped when the other waits for it, or when it has been granted the turn") {
  Hammered t;
  t.start();
  for (int round = 0; round < 50; ++round)
    for (const std::uint32_t state : {kWanted, kGranted})
      for (const std::uint32_t stopped : {0U, 1U}) {
        t.stop(stopped);
        t.hint.store_relaxed(state);  // as it has left it; the other one finds it at its next check
        REQUIRE(t.gets_on(1 - stopped));
        t.resume(stopped);
      }
  t.check_end();
}

TEST_CASE("turns: a killed process, in whatever state the turn is, does not block the other") {
  std::mt19937_64 random(test::stress_seed());
  const std::uint64_t rounds = test::stress_rounds(20);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    Hammered t;
    t.start();
    t.let_push(random() % 1000);
    const std::uint32_t killed = round % 2;
    t.writers[killed]->kill();
    REQUIRE(t.gets_on(1 - killed));
  }
}

TEST_CASE("turns: a process that writes arbitrary words into the hint all the time makes nobody lose a push") {
  std::mt19937 random(static_cast<std::mt19937::result_type>(test::stress_seed()));
  Hammered t;
  t.start();
  Child vandal([&] {
    JobSegments attached = t.job.attach();
    AtomicShm<std::uint32_t>& hint = hint_of(attached, record_in(attached));
    while (!t.tally->is_over)
      hint.store_relaxed(static_cast<std::uint32_t>(random() % 5 == 4 ? random() : random() % 3));
    return 0;
  });
  for (int round = 0; round < 10; ++round)
    for (const std::uint32_t rank : {0U, 1U}) REQUIRE(t.gets_on(rank));
  t.tally->is_over = true;
  CHECK(vandal.join() == 0);
  t.check_end();
}
