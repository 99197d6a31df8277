// Pulls pieces of variables from mapped host memory while others push to them: a seqlock's reader (Boehm, "Can seqlocks
// get along with programming language memory models?", 2012) on the GPU. A block takes a piece at a time.
//
// A versioned chunk is found and checked as src/shm/versioned_slot.hpp's pull does, whose names these are:
//   slot.R1  thread 0 loads the word, acquire: it pairs with the swap (slot.W6) that published the buffer, and the
//            barrier passes that on to the block. So the buffer's bytes are those of the word's version or newer ones.
//   slot.R2  all threads load the bytes, relaxed, at system scope.
//   slot.R3  each thread fences, the block meets, thread 0 loads the stamp. A pusher that takes the buffer for another
//            update stores the stamp "building" and fences (slot.W3) before its first byte. A thread that loaded one of
//            its bytes finds that stamp or a later one behind this fence. The bytes are thrown away then.
// No mutual exclusion and no atomic read-modify-write is needed, only that aligned loads of mapped memory are single
// accesses; so it is sound on every bus.
// An in-place range has its count of pushes loaded first (acquire): its elements are of that time or later, each whole.
#include "launch.cuh"
#include "system_memory.cuh"
#include "transfer_launchers.hpp"

namespace ps::kernels {
namespace {

// With four loads of 16 bytes under way in each thread, a chunk of 32 KiB is on the bus at once.
constexpr unsigned kPullThreads = 512;

constexpr unsigned kPieceWords = sizeof(PulledPiece) / sizeof(std::uint64_t);
static_assert(sizeof(PulledPiece) % sizeof(std::uint64_t) == 0 && alignof(PulledPiece) == sizeof(std::uint64_t),
              "a piece is loaded word by word");

// What thread 0 tells the others.
struct Found {
  const std::byte* buffer;  // nullptr: beyond what is registered
  std::uint64_t version;
  bool whole;
};

// All threads of the block.
__device__ void copy_from_system(float* out, const float* in, std::uint32_t count) {
  std::uint32_t begin = 0;
  if (is_aligned(out, sizeof(float4)) && is_aligned(in, sizeof(float4))) {
    const auto* from = reinterpret_cast<const float4*>(in);
    auto* to = reinterpret_cast<float4*>(out);
    const std::uint32_t vectors = count / 4;
    // Where the last round is not full, its loads are still under way together.
    for (std::uint32_t i = threadIdx.x; i < vectors; i += 4 * kPullThreads) {
      float4 loaded[4];
#pragma unroll
      for (unsigned k = 0; k < 4; ++k)
        if (i + k * kPullThreads < vectors) loaded[k] = load_relaxed_system(from + i + k * kPullThreads);
#pragma unroll
      for (unsigned k = 0; k < 4; ++k)
        if (i + k * kPullThreads < vectors) to[i + k * kPullThreads] = loaded[k];
    }
    begin = vectors * 4;
  }
  // Up to 3 elements, or of a range that begins anywhere all of them. 64 bits: the sum may pass 2^32.
  for (std::uint64_t i = std::uint64_t{begin} + threadIdx.x; i < count; i += kPullThreads)
    out[i] = load_relaxed_system(in + i);
}

// All threads of the block.
__device__ std::uint64_t pull_in_place(const PulledPiece& piece, Found& found) {
  if (threadIdx.x == 0) found.version = load_acquire_system(piece.word);  // (inplace.P3) pairs with inplace.P2
  __syncthreads();
  copy_from_system(piece.out, piece.elements, piece.count);
  return found.version;
}

// Thread 0.
__device__ void find_buffer(const PulledPiece& piece, const ChunkFormat& format, Found& found) {
  const std::uint64_t word = load_acquire_system(piece.word);  // (slot.R1)
  const std::uint64_t buffer = word & ((std::uint64_t{1} << format.buffer_bits) - 1);
  const std::uint64_t offset = buffer << piece.buffer_class;
  const std::uint64_t bytes = format.header_bytes + std::uint64_t{piece.count} * sizeof(float);
  found.version = word >> format.buffer_bits;
  found.buffer = nullptr;
  if (offset > piece.shard_bytes || piece.shard_bytes - offset < bytes) return;
  const std::uint64_t in_region = offset & ((std::uint64_t{1} << format.region_bits) - 1);
  found.buffer = reinterpret_cast<const std::byte*>(piece.regions[offset >> format.region_bits] + in_region);
}

// All threads of the block.
__device__ std::uint64_t pull_versioned(const PulledPiece& piece, const ChunkFormat& format, Found& found) {
  for (int attempt = 0; attempt < kPullAttempts; ++attempt) {
    if (threadIdx.x == 0) find_buffer(piece, format, found);
    __syncthreads();
    if (found.buffer == nullptr) return kPullTorn;
    copy_from_system(piece.out, reinterpret_cast<const float*>(found.buffer + format.header_bytes),
                     piece.count);  // (slot.R2)
    __threadfence_system();         // (slot.R3)
    __syncthreads();
    if (threadIdx.x == 0) {
      const std::uint64_t stamp = load_relaxed_system(reinterpret_cast<const std::uint64_t*>(found.buffer));
      found.whole = stamp == (piece.stamp | found.version);
    }
    __syncthreads();
    // Before thread 0 writes `whole` anew it passes two more barriers, so that all have looked.
    if (found.whole) return found.version;
  }
  return kPullTorn;
}

__global__ void __launch_bounds__(kPullThreads)
    pull_kernel(const PulledPiece* pieces, std::uint32_t count, std::uint64_t* results, ChunkFormat format) {
  __shared__ PulledPiece piece;
  __shared__ Found found;
  for (std::uint64_t i = blockIdx.x; i < count; i += gridDim.x) {
    // In one request, for the list may lie in host memory.
    if (threadIdx.x < kPieceWords)
      reinterpret_cast<std::uint64_t*>(&piece)[threadIdx.x] =
          reinterpret_cast<const std::uint64_t*>(pieces + i)[threadIdx.x];
    __syncthreads();
    const std::uint64_t result =
        piece.elements == nullptr ? pull_versioned(piece, format, found) : pull_in_place(piece, found);
    // A reader of the result sees the copy of every thread: the release covers what comes before the barrier. Behind that
    // nobody looks at `piece` any more.
    __syncthreads();                                                  // (gpu.G2)
    if (threadIdx.x == 0) store_release_system(results + i, result);  // (gpu.G2) pairs with gpu.G3
  }
}

const Loadable loadable{pull_kernel};

}  // namespace

cudaError_t pull_pieces(const PulledPiece* pieces, std::uint32_t count, std::uint64_t* results, ChunkFormat format,
                        cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return launch(pull_kernel, blocks_for(count, 1), kPullThreads, stream, pieces, count, results, format);
}

}  // namespace ps::kernels
