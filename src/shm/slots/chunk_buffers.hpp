// Where the chunks of a versioned variable and their buffers are in its shard, and what an update of one is told and tells,
// for the protocols on them (versioned_slot.hpp, single_writer_chunk.hpp).
//
// Buffer numbers that are read from shared memory are checked before they are used: at() throws Error (kDamaged) if one
// lies outside of the shard.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "shm/base/atomic.hpp"
#include "shm/segment/layout.hpp"
#include "shm/segment/placement.hpp"
#include "shm/slots/free_buffers.hpp"

namespace ps_shm::shm {

// For a model of memory: the task begins to try something, or tries again.
inline void poll_in_model([[maybe_unused]] bool is_first, [[maybe_unused]] std::uint64_t state) {
#if defined(PS_SHM_FAULT_POINTS)
  if (MemoryModel* const model = model_of_fences()) model->poll(is_first, state);
#endif
}

// The updating rank and its step, which go into the buffer's header, and the snapshot epoch of the update
// (snapshot_point.hpp).
struct UpdateLabel {
  std::uint32_t rank = 0;
  std::uint64_t step = 0;
  std::uint64_t epoch = 0;
  bool is_step = true;  // by the update rule: the optimizer's state counts it
  bool resets = false;  // the state is reset, before the step if it is one
};

// What a chunk has had before an update.
struct ChunkPast {
  std::uint64_t version = 0;  // updates of any kind
  std::uint64_t steps = 0;    // those that the optimizer's state contains
};

struct SwapResult {
  std::uint64_t version = 0;  // to which the update was applied
  std::uint64_t retries = 0;
};

// The pre-image field of a buffer that is not an accumulator's: {epoch : 40, buffer : 24}, the epoch of the chunk's
// last copy-on-write and the buffer that it preserved (snapshot.C6). Buffer 0: the chunk's buffer of the reserve, still
// unused.
inline AtomicShm<std::uint64_t>& preimage_of(BufferHeaderShm& header) noexcept { return header.contributors.bits[0]; }
inline const AtomicShm<std::uint64_t>& preimage_of(const BufferHeaderShm& header) noexcept {
  return header.contributors.bits[0];
}
constexpr std::uint64_t make_preimage(std::uint64_t epoch, std::uint64_t buffer) noexcept {
  return epoch << 24 | buffer;
}
constexpr std::uint64_t preimage_epoch(std::uint64_t preimage) noexcept { return preimage >> 24; }

// The skipped field of such a buffer: how many of the chunk's versions are no steps that the optimizer's state contains,
// as they were adds or assigns, or came before a reset (slot.V15). A step leaves it as it is, also where the buffer is
// changed in place.
inline AtomicShm<std::uint64_t>& skipped_of(BufferHeaderShm& header) noexcept { return header.contributors.bits[1]; }
inline const AtomicShm<std::uint64_t>& skipped_of(const BufferHeaderShm& header) noexcept {
  return header.contributors.bits[1];
}
constexpr ChunkPast past_of(std::uint64_t version, std::uint64_t skipped) noexcept {
  return {version, (version - skipped) & kVersionMask};
}

// The buffer that a chunk preserves beside its current one: the one that the pre-image field names, or initially the
// chunk's own buffer of the variable's reserve. 0 if there is none; accumulators have none.
inline std::uint64_t preserved_buffer(const VariableShm& variable, std::uint64_t chunk,
                                      std::uint64_t preimage) noexcept {
  if (variable.base != 0) return 0;
  if (buffer_of(preimage) != 0) return buffer_of(preimage);
  const std::uint64_t reserve = variable.reserve.load_acquire();  // (snapshot.C6) its bytes are there
  return reserve == 0 ? 0 : reserve + chunk;
}

// May be shared by threads.
class ChunkBuffers {
 public:
  // `shard` must outlive the object.
  ChunkBuffers(const Segment& shard, const VariableShm& variable) noexcept
      : data_(shard.data()),
        words_(reinterpret_cast<PieceWordShm*>(shard.data() + variable.words_offset)),
        shard_(&shard),
        variable_(variable),
        buffer_class_(variable.buffer_class),
        chunk_elements_(variable.piece_elements),
        elements_(variable.elements),
        stride_(variable.piece_elements * gradients_per_float(variable)),
        gradient_floats_(gradient_floats(variable)) {}

  std::uint64_t chunks() const noexcept { return variable_.pieces; }
  std::uint64_t chunk_begin(std::uint64_t chunk) const noexcept { return chunk * chunk_elements_; }
  std::uint64_t chunk_size(std::uint64_t chunk) const noexcept {
    return std::min(chunk_elements_, elements_ - chunk * chunk_elements_);
  }
  // The same for its gradient and for each of its optimizer slots, which have a float for each element of its dtype.
  std::uint64_t gradient_begin(std::uint64_t chunk) const noexcept { return chunk * stride_; }
  std::uint64_t gradient_size(std::uint64_t chunk) const noexcept {
    return std::min(stride_, gradient_floats_ - chunk * stride_);
  }
  // The same for array `array` of pull_chunk().
  std::uint64_t array_begin(std::uint64_t chunk, std::uint64_t array) const noexcept {
    return array == 0 ? chunk_begin(chunk) : gradient_begin(chunk);
  }
  std::uint64_t array_size(std::uint64_t chunk, std::uint64_t array) const noexcept {
    return array == 0 ? chunk_size(chunk) : gradient_size(chunk);
  }

  // The floats of an optimizer slot. Slot k of a chunk lies place_of(k + 1) floats behind its parameters: the slots
  // follow them without gaps.
  std::uint64_t stride() const noexcept { return stride_; }
  std::uint64_t place_of(std::uint64_t array) const noexcept {
    return array == 0 ? 0 : chunk_elements_ + (array - 1) * stride_;
  }

 protected:
  BufferHeaderShm& place(std::uint64_t buffer) const noexcept {
    return *reinterpret_cast<BufferHeaderShm*>(data_ + (buffer << buffer_class_));
  }
  // The same for a number that was read from shared memory. Throws Error if the shard has no such buffer.
  BufferHeaderShm& at(std::uint64_t buffer) const {
    if (!has_buffer(*shard_, buffer, buffer_class_)) [[unlikely]]
      fail_buffer(*shard_, buffer);
    return place(buffer);
  }
  static float* parameters(BufferHeaderShm& buffer) noexcept { return reinterpret_cast<float*>(&buffer + 1); }
  static const float* parameters(const BufferHeaderShm& buffer) noexcept {
    return reinterpret_cast<const float*>(&buffer + 1);
  }
  std::uint64_t stamp_of(std::uint64_t chunk, std::uint64_t word) const noexcept {
    return make_stamp(variable_.first_chunk + chunk, version_of(word));
  }
  bool is_whole(const BufferHeaderShm& buffer, std::uint64_t chunk, std::uint64_t word) const noexcept {
    fence_acquire();  // (slot.R3) pairs with slot.W3
    return buffer.stamp.load_relaxed() == stamp_of(chunk, word);
  }
  std::size_t payload_floats() const noexcept {
    return ((std::size_t{1} << buffer_class_) - sizeof(BufferHeaderShm)) / sizeof(float);
  }
  // The values and the optimizer slots.
  std::uint64_t arrays() const noexcept { return 1 + variable_.slots; }

  std::byte* data_;
  PieceWordShm* words_;
  const Segment* shard_;
  const VariableShm& variable_;
  std::uint32_t buffer_class_;
  std::uint64_t chunk_elements_, elements_;  // of values, as floats
  std::uint64_t stride_, gradient_floats_;   // of gradients and optimizer slots
};

}  // namespace ps_shm::shm
