// Recovery after a killed pusher: its records are written by hand in the state that a kill at each point leaves.
#include <doctest/doctest.h>

#include <vector>

#include "shm/slots/recovery.hpp"
#include "support/conservation.hpp"
#include "support/test_job.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::TestJob;

namespace {

void copy_up(float* out, const float* in, ChunkPast) { *out = *in + 1; }

// One variable; each rank pushes through its own attachment, which holds its byte while the rank lives.
struct Scene {
  TestJob job{{.chunk_bytes = 1024}};
  VariableShm& record = job.declare("v", 1000);

  struct Rank {
    JobSegments segments;
    FreeBuffers free_buffers;
    std::uint32_t number;
    Rank(const TestJob& job, std::uint32_t rank) : segments(job.attach()), free_buffers(segments, rank), number(rank) {
      REQUIRE(segments.locks().try_take(kRankByte + rank));
    }
  };

  // A rank that fills a free buffer for the chunk and stops there, and the words that it would swap.
  struct Pending {
    FreeBuffer free_buffer;
    std::uint64_t chunk, old;
  };
  Pending begin(Rank& rank, std::uint64_t chunk) {
    const std::uint64_t old = job.word(record, chunk).load_acquire();
    const FreeBuffer free_buffer = rank.free_buffers.begin(record, record.first_chunk + chunk, old, buffer_of(old));
    const FreeBufferShm* of_class =
        rank.segments.free_buffer_table(0, rank.number).free_buffers[record.buffer_class - kMinClass];
    const auto which = static_cast<std::uint32_t>(free_buffer.shared - of_class);
    return {
        {&job.free_buffer(record, rank.number, which), free_buffer.buffer}, chunk, old};  // outlives the rank's mapping
  }
  void swap(const Pending& pending) {
    const std::uint64_t next = make_word(version_of(pending.old) + 1, pending.free_buffer.buffer);
    job.buffer(record, pending.free_buffer.buffer)
        .stamp.store_relaxed(make_stamp(record.first_chunk + pending.chunk, version_of(next)));
    std::uint64_t old = pending.old;
    REQUIRE(job.word(record, pending.chunk).try_exchange_acq_rel(old, next));
  }
  void push(Rank& rank, std::uint64_t chunk) {
    job.versioned(record).push_chunk(chunk, rank.free_buffers, {}, copy_up);
  }
  // The next owner of the rank, whose predecessor is dead.
  void settle(std::uint32_t rank) {
    Rank next(job, rank);
    recover_buffers(next.segments, rank, next.segments.locks());
  }
  bool conserved() const { return test::is_conserved(job.segments, {&record}); }
  std::vector<std::uint64_t> words() const {
    std::vector<std::uint64_t> all;
    for (std::uint64_t chunk = 0; chunk < record.pieces; ++chunk) all.push_back(job.word(record, chunk).load_acquire());
    return all;
  }
  std::uint64_t buffer_now(const FreeBuffer& free_buffer) const {
    return buffer_of(free_buffer.shared->record.load_acquire());
  }
  bool in_flight(const FreeBuffer& free_buffer) const {
    return (free_buffer.shared->record.load_acquire() >> 62 & 1) != 0;
  }
};

}  // namespace

TEST_CASE("free buffers: a rank that loses a swap keeps its free buffer, with nothing in doubt (slot.S2)") {
  Scene scene;
  Scene::Rank rank(scene.job, 0);
  const Scene::Pending pending = scene.begin(rank, 0);
  CHECK(scene.in_flight(pending.free_buffer));
  FreeBuffers::lost(pending.free_buffer);
  CHECK_FALSE(scene.in_flight(pending.free_buffer));
  CHECK(scene.buffer_now(pending.free_buffer) == pending.free_buffer.buffer);
  CHECK(scene.conserved());
}

TEST_CASE("recovering: a rank that was never used needs nothing") {
  Scene scene;
  scene.settle(0);
  CHECK(scene.conserved());
}

TEST_CASE("recovering: killed before the note, the note of an earlier push changes nothing") {
  Scene scene;
  {
    Scene::Rank dead(scene.job, 0);
    for (int i = 0; i < 5; ++i) scene.push(dead, 0);
    FreeBufferShm& next = scene.job.free_buffer(scene.record, 0, 1);
    next.note_chunk.store_relaxed(scene.record.first_chunk + 2);  // half a note, not in flight
  }
  const auto words = scene.words();
  scene.settle(0);
  CHECK(scene.words() == words);
  CHECK(scene.conserved());
}

TEST_CASE("recovering: killed before the swap, the free buffer stays and the word is unchanged") {
  Scene scene;
  Scene::Pending pending;
  {
    Scene::Rank dead(scene.job, 0);
    pending = scene.begin(dead, 0);
  }
  const auto words = scene.words();
  scene.settle(0);
  CHECK(scene.words() == words);
  CHECK_FALSE(scene.in_flight(pending.free_buffer));
  CHECK(scene.buffer_now(pending.free_buffer) == pending.free_buffer.buffer);
  CHECK(scene.conserved());
}

TEST_CASE("recovering: killed after the swap, the replaced buffer is the free buffer") {
  Scene scene;
  Scene::Pending pending;
  {
    Scene::Rank dead(scene.job, 0);
    pending = scene.begin(dead, 0);
    scene.swap(pending);
  }
  const auto words = scene.words();
  scene.settle(0);
  CHECK(scene.words() == words);
  CHECK(scene.buffer_now(pending.free_buffer) == buffer_of(pending.old));
  CHECK(scene.conserved());
}

TEST_CASE("recovering: killed before the swap, and the current buffer was replaced and reused by another rank") {
  Scene scene;
  Scene::Pending pending;
  Scene::Rank alive(scene.job, 1);
  {
    Scene::Rank dead(scene.job, 0);
    pending = scene.begin(dead, 0);
  }
  scene.push(alive, 0);  // the buffer that the dead rank expected is now a free buffer of rank 1
  SUBCASE("a free buffer") {}
  SUBCASE("the current buffer of another chunk") {
    for (std::uint32_t i = 0; i < kFreeBuffersPerClass; ++i) scene.push(alive, 1);
  }
  scene.settle(0);
  CHECK(scene.buffer_now(pending.free_buffer) == pending.free_buffer.buffer);
  CHECK(scene.conserved());
}

TEST_CASE("recovering: killed before the swap, and a snapshot point keeps the expected buffer (snapshot.C6)") {
  Scene scene;
  Directory(scene.job.segments).reserve({0}, kSnapshotByte);
  Scene::Pending pending;
  Scene::Rank alive(scene.job, 1);
  {
    Scene::Rank dead(scene.job, 0);
    pending = scene.begin(dead, 0);
  }
  scene.job.versioned(scene.record).push_chunk(0, alive.free_buffers, {.epoch = 1}, copy_up);  // copies on write
  scene.settle(0);
  CHECK_FALSE(scene.in_flight(pending.free_buffer));
  CHECK(scene.buffer_now(pending.free_buffer) == pending.free_buffer.buffer);
  CHECK(scene.conserved());
}

TEST_CASE("recovering: killed after the swap, and its buffer was replaced and reused by another rank") {
  Scene scene;
  Scene::Pending pending;
  Scene::Rank alive(scene.job, 1);
  {
    Scene::Rank dead(scene.job, 0);
    pending = scene.begin(dead, 0);
    scene.swap(pending);
  }
  scene.push(alive, 0);
  SUBCASE("a free buffer") {}
  SUBCASE("the current buffer of another chunk") {
    for (std::uint32_t i = 0; i < kFreeBuffersPerClass; ++i) scene.push(alive, 1);
  }
  scene.settle(0);
  CHECK(scene.buffer_now(pending.free_buffer) == buffer_of(pending.old));
  CHECK(scene.conserved());
}

TEST_CASE("recovering: a free buffer that depends on a live rank between swap and note waits, the others are usable") {
  Scene scene;
  Scene::Pending first, second;
  Scene::Rank alive(scene.job, 1);
  {
    Scene::Rank dead(scene.job, 0);
    first = scene.begin(dead, 0);
    scene.swap(first);
  }
  second = scene.begin(alive, 0);
  scene.swap(second);  // has replaced the dead rank's buffer and not noted it yet
  {
    Scene::Rank successor(scene.job, 0);
    recover_buffers(successor.segments, 0, successor.segments.locks());
    CHECK(scene.in_flight(first.free_buffer));
    for (int i = 0; i < 20; ++i) scene.push(successor, 1);
    CHECK(scene.in_flight(first.free_buffer));
  }
  FreeBuffers::won(second.free_buffer, buffer_of(second.old));
  scene.settle(0);
  CHECK(scene.buffer_now(first.free_buffer) == buffer_of(first.old));
  CHECK(scene.conserved());
}

// Regression: the second one's outcome was noted and then ignored when the first one's buffer was chosen.
TEST_CASE("recovering: of two dead ranks the second has swapped out the first one's buffer") {
  for (const std::uint32_t first_settled : {0U, 1U}) {
    CAPTURE(first_settled);
    Scene scene;
    {
      Scene::Rank dead(scene.job, 0), later(scene.job, 1);
      const Scene::Pending first = scene.begin(dead, 0);
      scene.swap(first);
      scene.swap(scene.begin(later, 0));
    }
    const auto words = scene.words();
    scene.settle(first_settled);
    scene.settle(1 - first_settled);
    CHECK(scene.words() == words);
    CHECK(scene.conserved());
  }
}

TEST_CASE("recovering: three died in a row on one chunk, in any order of their successors") {
  for (const std::vector<std::uint32_t>& order :
       std::vector<std::vector<std::uint32_t>>{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}) {
    CAPTURE(order[0] * 100 + order[1] * 10 + order[2]);
    Scene scene;
    {
      Scene::Rank a(scene.job, 0), b(scene.job, 1), c(scene.job, 2);
      scene.swap(scene.begin(a, 0));
      scene.swap(scene.begin(b, 0));
      scene.swap(scene.begin(c, 0));
    }
    for (const std::uint32_t rank : order) scene.settle(rank);
    CHECK(scene.conserved());
  }
}

TEST_CASE("recovering: two died in a row on one chunk, and a live rank has replaced the second one's buffer") {
  Scene scene;
  Scene::Rank alive(scene.job, 2);
  {
    Scene::Rank dead(scene.job, 0), later(scene.job, 1);
    scene.swap(scene.begin(dead, 0));
    scene.swap(scene.begin(later, 0));
    scene.push(alive, 0);
  }
  scene.settle(0);
  scene.settle(1);
  CHECK(scene.conserved());
}

TEST_CASE("recovering: two dead ranks expected the same word, and one of them has swapped") {
  for (const std::uint32_t first_settled : {0U, 1U}) {
    CAPTURE(first_settled);
    Scene scene;
    {
      Scene::Rank winner(scene.job, 0), loser(scene.job, 1);
      const Scene::Pending won = scene.begin(winner, 0);
      scene.begin(loser, 0);
      scene.swap(won);
    }
    scene.settle(first_settled);
    scene.settle(1 - first_settled);
    CHECK(scene.conserved());
  }
}
