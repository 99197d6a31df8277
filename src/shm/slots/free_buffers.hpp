// The free buffers of a rank, which its pushes fill, and their records, from which the next owner of the rank recovers
// those that a dead owner had in flight.
//
// A rank has one list of free buffers, a lane, for each thread that the job allows. One thread at a time uses
// a lane.
//
// Conservation: each buffer of a shard and class is named by exactly one word, current buffer's header (snapshot.C6) or
// free-buffer record, except between a successful swap and the store that notes the gained buffer. From `record` and
// the note beside it (chunk, expected word, gain), the next owner of the rank finds out on which side of that moment
// its predecessor died (slot.V5, slot.V6).
//
//   slot.S1  begin: note_chunk, note_word, note_gain, relaxed; record = {in flight, S}, release     pairs with slot.S3
//   slot.W6  word(chunk) from {v, B} to {v + 1, S}
//   slot.S2  won: record = {gain}, release: only now is it this rank's; lost: record = {S}      pairs with slot.S3
//            the gain is B, or the preserved buffer that B's pre-image field names (snapshot.C6)
//   slot.S3  a recovering process reads the record, acquire, and then the note
// A note is written only while its record is not in flight.
#pragma once

#include <cstdint>

#include "shm/base/undo_log.hpp"
#include "shm/segment/job_segments.hpp"

namespace ps_shm::shm {

// Word {version : 40, buffer : 24} and stamp {chunk : 24, version : 40} (slot.V1). Versions are modular: never compare
// them with <.
inline constexpr std::uint64_t kVersionMask = (std::uint64_t{1} << 40) - 1;
inline constexpr std::uint64_t kBufferMask = (std::uint64_t{1} << 24) - 1;
inline constexpr std::uint64_t kBuilding = ~std::uint64_t{0};  // no chunk has number 2^24 - 1

// FreeBufferShm::record.
inline constexpr std::uint64_t kValidFreeBuffer = std::uint64_t{1} << 63, kFreeBufferInFlight = std::uint64_t{1} << 62;
constexpr bool is_valid(std::uint64_t record) noexcept { return (record & kValidFreeBuffer) != 0; }
constexpr bool is_in_flight(std::uint64_t record) noexcept { return (record & kFreeBufferInFlight) != 0; }

constexpr std::uint64_t make_word(std::uint64_t version, std::uint64_t buffer) noexcept {
  return (version & kVersionMask) << 24 | buffer;
}
constexpr std::uint64_t version_of(std::uint64_t word) noexcept { return word >> 24; }
constexpr std::uint64_t buffer_of(std::uint64_t word) noexcept { return word & kBufferMask; }
constexpr std::uint64_t make_stamp(std::uint64_t chunk, std::uint64_t version) noexcept {
  return chunk << 40 | (version & kVersionMask);
}

// The stamp of a current buffer that is being changed in place (slot.U2): the buffer with the undo log, and the last bits
// of the version before, which together with the word tell one change of the chunk from the next (slot.V13).
inline constexpr std::uint64_t kChanging = UndoLog::kOfNoChunk | std::uint64_t{1} << 39, kFewVersionBits = 0x3fff;
constexpr std::uint64_t make_changing(std::uint64_t undo, std::uint64_t word) noexcept {
  return kChanging | (version_of(word) & kFewVersionBits) << 24 | undo;
}
constexpr bool is_changing(std::uint64_t stamp) noexcept {
  return (stamp & ~(kFewVersionBits << 24 | kBufferMask)) == kChanging;  // bit 38 is 0, and kBuilding's is not
}

// Whether the shard's file has that buffer of the class: for numbers that were read from shared memory.
inline bool has_buffer(const Segment& shard, std::uint64_t buffer, std::uint32_t buffer_class) {
  return shard.covers((buffer + 1) << buffer_class);
}

// Throws Error (kDamaged).
[[noreturn, gnu::cold]] void fail_buffer(const Segment& shard, std::uint64_t buffer);
[[noreturn, gnu::cold]] void fail_changed(const Segment& shard, std::uint64_t chunk);
[[noreturn, gnu::cold]] void fail_free_buffers(const Segment& shard, std::uint32_t lane);

// A free buffer in use by a push: its record and its number.
struct FreeBuffer {
  FreeBufferShm* shared = nullptr;
  std::uint64_t buffer = 0;
};

// The buffer that a record names; `variable` is any variable of its shard and class.
inline std::uint64_t free_buffer_of(std::uint64_t record, const VariableShm& variable, std::uint32_t lane,
                                    std::uint32_t which) noexcept {
  if (record != 0) return buffer_of(record);
  return (variable.free_buffers_offset >> variable.buffer_class) + std::uint64_t{lane} * kFreeBuffersPerClass + which;
}

// The free buffers of one lane. Used by one thread. Wait-free.
class FreeBuffers {
 public:
  FreeBuffers(JobSegments& job, std::uint32_t lane) noexcept : job_(job), lane_(lane) {}

  // Takes the next free buffer for a swap of `chunk` of `variable` from `word`, and notes it as in flight. `gain`: the
  // buffer that becomes the rank's if the swap succeeds. Throws Error (kDamaged) if the records cannot be right.
  FreeBuffer begin(const VariableShm& variable, std::uint64_t chunk, std::uint64_t word, std::uint64_t gain) {
    const std::uint32_t index = variable.buffer_class - kMinClass;
    FreeBufferShm* free_buffers = job_.free_buffer_table(variable.shard, lane_).free_buffers[index];
    for (std::uint32_t in_flight = 0;;) {  // only one push is under way, so at most one buffer is in doubt
      const std::uint32_t which = next_[index];
      next_[index] =
          (which + 1) % kFreeBuffersPerClass;  // in turn, to give slow readers of a replaced buffer some time
      FreeBufferShm& shared = free_buffers[which];
      const std::uint64_t record = shared.record.load_relaxed();  // relaxed: only this thread writes it (locks.L4)
      if (is_in_flight(record)) {
        if (++in_flight == kFreeBuffersPerClass) fail_free_buffers(job_.shard(variable.shard), lane_);
        continue;
      }
      const std::uint64_t buffer = free_buffer_of(record, variable, lane_, which);
      const Segment& shard = job_.shard(variable.shard);
      if (!has_buffer(shard, buffer, variable.buffer_class)) [[unlikely]]
        fail_buffer(shard, buffer);
      shared.note_chunk.store_relaxed(chunk);  // relaxed, as the next two are: slot.S1 publishes them
      shared.note_word.store_relaxed(word);
      shared.note_gain.store_relaxed(gain);
      fault_point(FaultPoint::kFreeBufferNoted);
      shared.record.store_release(kValidFreeBuffer | kFreeBufferInFlight | buffer);  // (slot.S1) the note is complete
      fault_point(FaultPoint::kFreeBufferInFlight);
      return {&shared, buffer};
    }
  }

  static void won(const FreeBuffer& free_buffer, std::uint64_t gain) noexcept {
    free_buffer.shared->record.store_release(kValidFreeBuffer | gain);  // (slot.S2) slot.V5: both in one store
    fault_point(FaultPoint::kPushNoted);
  }

  static void lost(const FreeBuffer& free_buffer) noexcept {
    free_buffer.shared->record.store_release(kValidFreeBuffer | free_buffer.buffer);  // (slot.S2)
    fault_point(FaultPoint::kPushRecovered);
  }

 private:
  JobSegments& job_;
  std::uint32_t lane_;
  std::uint32_t next_[kClasses] = {};
};

}  // namespace ps_shm::shm
