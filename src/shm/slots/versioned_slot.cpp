#include "shm/slots/versioned_slot.hpp"

#include <algorithm>

namespace ps_shm::shm {

// No other process reads or writes the words and buffers before `init` says "initialised" (directory.D6), so
// everything is relaxed. If a predecessor died half-way, its bytes are overwritten completely.
float* VersionedVariable::begin_chunk(std::uint64_t chunk, std::span<const float> values,
                                      std::uint64_t version) noexcept {
  const std::uint64_t word = make_word(version & kVersionMask, (variable_.data_offset >> buffer_class_) + chunk);
  BufferHeaderShm& buffer = at(buffer_of(word));
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
