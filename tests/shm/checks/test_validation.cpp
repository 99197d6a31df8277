// A job with inconsistent tables is refused with the reason, by every process that joins it; a consistent one is not,
// whatever its history.
#include <doctest/doctest.h>

#include <functional>
#include <vector>

#include "ps_shm/errors.hpp"
#include "shm/checks/validation.hpp"
#include "shm/segment/live_record.hpp"
#include "support/member.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::Member;
using test::TestJob;

namespace {

// Rank 0 has pushed to both chunks of one variable, and is in the middle of a push to the first; rank 1 has joined,
// too. Both have completed a step.
struct Past {
  TestJob job{{.workers = 2, .max_workers = 2, .mode = Mode::kSync, .chunk_bytes = 1024}};
  VariableShm& record = job.declare("v", 300);
  VersionedVariable variable = job.versioned(record);
  Member first{job}, second{job};
  FreeBuffer in_flight;

  Past() {
    REQUIRE(variable.chunks() == 2);
    FreeBuffers free_buffers(job.segments, 0);
    for (const std::uint64_t chunk : {0, 1})
      variable.push_chunk(chunk, free_buffers, {}, [](float*, const float*, ChunkPast) {});
    const std::uint64_t old = word(0).load_acquire();
    in_flight = free_buffers.begin(record, record.first_chunk, old, buffer_of(old));
    for (Member* member : {&first, &second}) member->barrier.arrive(0);
    for (Member* member : {&first, &second}) test::complete(member->barrier, 0);
  }
  AtomicShm<std::uint64_t>& word(std::uint64_t chunk) { return job.word(record, chunk); }
  AtomicShm<std::uint64_t>& live(config::LiveKey key) { return word_of(job.segments.state().live[0], key); }
  BufferHeaderShm& current(std::uint64_t chunk) { return job.buffer(record, buffer_of(word(chunk).load_acquire())); }
  WorkerShm& worker(std::uint32_t rank) { return job.segments.worker(rank); }
  BarrierEntryShm& entry(std::uint32_t rank) { return worker(rank).barriers[0]; }
  FreeBufferShm& idle() {  // a free buffer that is not in flight
    for (std::uint32_t which = 0;; ++which)
      if (!is_in_flight(job.free_buffer(record, 0, which).record.load_acquire()))
        return job.free_buffer(record, 0, which);
  }
};

constexpr std::uint64_t kNoBuffer = kBufferMask - 7;

struct Damage {
  const char* said;
  std::function<void(Past&)> make;
};

void check_refused(const std::vector<Damage>& all) {
  for (const Damage& damage : all) {
    CAPTURE(damage.said);
    Past past;
    REQUIRE_NOTHROW(check_job(past.job.segments));
    damage.make(past);
    CHECK_THROWS_WITH_AS(check_job(past.job.segments), doctest::Contains(damage.said), Error);
  }
}

}  // namespace

TEST_CASE("damage: a buffer that is in use twice") {
  const auto own = [](Past& past) { return buffer_of(past.word(0).load_acquire()); };
  check_refused({
      {"is in use twice", [&](Past& past) { past.idle().record.store_release(kValidFreeBuffer | own(past)); }},
      {"is in use twice",
       // A buffer in flight is a free buffer, too, and the one that it would gain is still the chunk's.
       [](Past& past) { past.idle().record.store_release(kValidFreeBuffer | past.in_flight.buffer); }},
  });
}

TEST_CASE("damage: chunks and free buffers that name no buffer of their class, or another one's") {
  check_refused({
      {"names no buffer of its class", [](Past& past) { past.word(1).store_release(make_word(1, kNoBuffer)); }},
      {"is torn", [](Past& past) { past.current(0).stamp.store_release(make_stamp(past.record.first_chunk, 7)); }},
      {"is torn", [](Past& past) { past.current(0).stamp.store_release(make_stamp(past.record.first_chunk + 1, 1)); }},
      {"preserves a buffer that is not of its class",
       [](Past& past) { preimage_of(past.current(0)).store_release(make_preimage(1, kNoBuffer)); }},
      {"a free buffer of rank 0", [](Past& past) { past.idle().record.store_release(kValidFreeBuffer | kNoBuffer); }},
      {"a free buffer of rank 0", [](Past& past) { past.idle().record.store_release(1); }},
      {"a free buffer of rank 0", [](Past& past) { past.in_flight.shared->note_gain.store_release(kNoBuffer); }},
  });
}

TEST_CASE("damage: impossible entries of workers and of barriers") {
  check_refused({
      {"the entry of rank 1", [](Past& past) { past.worker(1).state.store_release(9); }},
      {"the entry of rank 1", [](Past& past) { past.worker(1).holders.store_release(std::uint64_t{1} << 40); }},
      {"a step that is far ahead", [](Past& past) { past.entry(1).published.store_release(9); }},
      {"a step that is far ahead", [](Past& past) { past.entry(0).active_from.store_release(9); }},
      {"a gradient segment without an owner", [](Past& past) { past.entry(1).generation.store_release(2); }},
      {"a decision, although it is the user barrier",
       [](Past& past) { past.job.segments.barrier(1).decision.store_release(make_decision(1, 0, 0)); }},
      {"a proposer that does not exist",
       [](Past& past) { past.job.segments.barrier(0).decision.store_release(make_decision(1, 0, 2)); }},
      {"a decision that is not about the step under way",
       [](Past& past) { past.job.segments.barrier(0).decision.store_release(make_decision(3, 0, 0)); }},
      {"a decision that is not about the step under way",
       [](Past& past) { past.job.segments.barrier(0).decision.store_release(make_decision(0, 0, 1)); }},
      {"nobody has proposed",
       [](Past& past) { past.job.segments.barrier(0).decision.store_release(make_decision(2, 0, 0)); }},
  });
}

TEST_CASE("damage: live settings that the job cannot have") {
  check_refused({
      {"its runtime settings are impossible",
       [](Past& past) { past.live(config::LiveKey::kQuorum).store_relaxed(kMaxRanks + 1); }},
      {"its runtime settings are impossible",
       [](Past& past) { past.live(config::LiveKey::kMode).store_relaxed(config::live_word(Mode::kAsync)); }},
  });
}
