// What the transfer kernels are told: plain data that both compilers read. All addresses are the device's.
#pragma once

#include <cstdint>

namespace ps::kernels {

// What becomes of a pulled piece: not done yet; torn three times over, or in memory that is not registered. Anything else is its
// version (in place: how many pushes it had had).
inline constexpr std::uint64_t kPullPending = ~std::uint64_t{0};
inline constexpr std::uint64_t kPullTorn = kPullPending - 1;
inline constexpr int kPullAttempts = 3;

// How a versioned chunk is found from its word and known by its stamp; the segment's layout fills this in. The stamp is
// the first word of a buffer.
struct ChunkFormat {
  std::uint32_t buffer_bits;   // of the word: the low ones name the buffer, the rest is the version
  std::uint32_t header_bytes;  // in front of a buffer's elements
  std::uint32_t region_bits;   // a shard is registered in regions of so many address bits
};

// One versioned chunk, or a range of an in-place variable's block.
struct PulledPiece {
  const std::uint64_t* word;     // versioned: its word; in place: counts the block's pushes
  const float* elements;         // in place: where they lie; versioned: nullptr
  const std::uint64_t* regions;  // versioned: where the regions of its shard begin
  std::uint64_t shard_bytes;     // versioned: how much of the shard is registered
  std::uint64_t stamp;           // versioned: that of version 0
  float* out;
  std::uint32_t count;         // floats
  std::uint32_t buffer_class;  // versioned: log2 of a buffer's bytes
};

// A range of a gradient on its way to host memory.
struct SentPiece {
  const float* from;
  void* to;             // floats, or bfloat16
  std::uint32_t count;  // elements
  std::uint32_t pad;
};

// A range of a gradient that is added to an in-place variable.
struct AddedPiece {
  const float* from;
  float* to;
  std::uint32_t count;  // floats
  std::uint32_t pad;
};

}  // namespace ps::kernels
