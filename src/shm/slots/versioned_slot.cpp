#include "shm/slots/versioned_slot.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "shm/segment/attach_outcome.hpp"

namespace ps_shm::shm {

void fail_buffer(const Segment& shard, std::uint64_t buffer) {
  fail_damaged(shard.name(), fmt::format("it has no buffer {}, which a chunk or a list of free buffers names", buffer));
}

void fail_changed(const Segment& shard, std::uint64_t chunk) {
  fail_damaged(shard.name(), fmt::format("chunk {} of a single-writer variable has changed beside its writer", chunk));
}

void fail_free_buffers(const Segment& shard, std::uint32_t lane) {
  fail_damaged(shard.name(), fmt::format("no free buffer of lane {} can be used", lane));
}

// No other process reads or writes the words and buffers before `init` says "initialised" (directory.D6), so
// everything is relaxed. If a predecessor died half-way, its bytes are overwritten completely.
float* VersionedVariable::begin_chunk(std::uint64_t chunk, std::span<const float> values,
                                      std::uint64_t version) noexcept {
  const std::uint64_t word = make_word(version & kVersionMask, (variable_.data_offset >> buffer_class_) + chunk);
  BufferHeaderShm& buffer = place(buffer_of(word));
  float* out = parameters(buffer);
  fault_point(FaultPoint::kInitBuffer);
  std::copy(values.begin(), values.end(), out);
  std::fill(out + values.size(), out + payload_floats(), 0.0F);
  buffer.included_steps.store_relaxed(0);
  buffer.writer.store_relaxed(0);
  buffer.writer_step.store_relaxed(0);
  for (auto& bits : buffer.contributors.bits) bits.store_relaxed(0);
  buffer.stamp.store_relaxed(stamp_of(chunk, word));
  fault_point(FaultPoint::kInitStamped);
  words_[chunk].word.store_relaxed(word);
  return out;
}

}  // namespace ps_shm::shm
