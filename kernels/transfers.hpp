// The parameters of the transfer kernels: plain data that both compilers read. All addresses are device addresses.
#pragma once

#include <cstdint>

namespace ps_shm::kernels {

// The result of a pull: pending; torn three times, or in memory that is not registered; any other value is the version
// (in place: the number of pushes).
inline constexpr std::uint64_t kPullPending = ~std::uint64_t{0};
inline constexpr std::uint64_t kPullTorn = kPullPending - 1;
inline constexpr int kPullAttempts = 3;

// A stream waits at a gate, a word in host memory, until it is open or cancelled. Behind a cancelled one a graph stores
// nothing to memory that other workers read: they may still read what was sent in the step before.
inline constexpr std::uint32_t kGateClosed = 0, kGateOpen = 1, kGateCancelled = 2;

// How the buffer of a versioned chunk is located from its word and checked by its stamp. The values come from the
// segment's layout. The stamp is the first word of a buffer.
struct ChunkFormat {
  std::uint32_t buffer_bits;   // of the word: the low bits name the buffer, the others are the version
  std::uint32_t header_bytes;  // before a buffer's elements
  std::uint32_t region_bits;   // log2 of the size of the regions in which a shard is registered
};

// One versioned chunk, or a range of an in-place variable's block.
struct PulledPiece {
  const std::uint64_t* word;     // versioned: its word; in place: the block's count of pushes
  const float* elements;         // in place: its elements; versioned: nullptr
  const std::uint64_t* regions;  // versioned: start of each region of its shard
  std::uint64_t shard_bytes;     // versioned: number of registered bytes of the shard
  std::uint64_t stamp;           // versioned: the stamp of version 0
  float* out;
  std::uint32_t count;         // floats
  std::uint32_t buffer_class;  // versioned: log2 of a buffer's bytes
};

// The number of blocks that send: few, so that chunks arrive one after the other rather than all at the end. Each keeps
// 32 KiB in flight.
inline constexpr std::uint32_t kSenders = 12;

// A range of a gradient that is sent to host memory.
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

}  // namespace ps_shm::kernels
