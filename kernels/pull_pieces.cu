// Pulls chunks of variables from mapped host memory while workers push to them: a seqlock's reader (Boehm, "Can
// seqlocks get along with programming language memory models?", 2012) on the GPU. Each block pulls one chunk at a time.
//
// A versioned chunk is located and checked as in the pull of src/shm/slots/versioned_slot.hpp, with the same labels:
//   slot.R1  thread 0 loads the word, acquire: it pairs with the swap (slot.W6) that published the buffer, and the
//            barrier passes that on to the block. So the buffer's bytes are those of the word's version or newer ones.
//   slot.R2  all threads load the bytes, relaxed, at system scope.
//   slot.R3  each thread fences (acquire), the block synchronises, thread 0 loads the stamp. A pusher that reuses the
//            buffer for another update stores the stamp "building" and fences (release, slot.W3) before its first byte.
//            So the fence of a thread that has loaded one of its bytes synchronises with the pusher's, and the barrier
//            passes that on to thread 0, which finds that stamp or a later one. The bytes are then discarded.
// Neither mutual exclusion nor an atomic read-modify-write is needed, only that aligned loads of mapped memory are
// single accesses. The protocol is therefore correct on every bus.
// For an in-place range the count of pushes is loaded first (acquire): its elements are of that time or later, each
// untorn.
#include "launch.cuh"
#include "system_memory.cuh"
#include "transfer_launchers.hpp"

namespace ps_shm::kernels {
namespace {

// With four loads of 16 bytes in flight in each thread, all of a chunk of 32 KiB is requested at once.
constexpr unsigned kPullThreads = 512;

constexpr unsigned kPieceWords = sizeof(PulledPiece) / sizeof(std::uint64_t);
static_assert(sizeof(PulledPiece) % sizeof(std::uint64_t) == 0 && alignof(PulledPiece) == sizeof(std::uint64_t),
              "a piece is loaded word by word");

// What thread 0 tells the other threads.
struct Found {
  const std::byte* buffer;  // nullptr: beyond the registered memory
  std::uint64_t version;
  bool whole;
};

// Called by all threads of the block.
__device__ void copy_from_system(float* out, const float* in, std::uint32_t count) {
  std::uint32_t begin = 0;
  if (is_aligned(out, sizeof(float4)) && is_aligned(in, sizeof(float4))) {
    const auto* from = reinterpret_cast<const float4*>(in);
    auto* to = reinterpret_cast<float4*>(out);
    const std::uint32_t vectors = count / 4;
    // Also in an incomplete last round, all loads are in flight together.
    for (std::uint32_t i = threadIdx.x; i < vectors; i += 4 * kPullThreads) {
      float4 loaded[4];
#pragma unroll
      for (unsigned k = 0; k < 4; ++k)
        if (i + k * kPullThreads < vectors) loaded[k] = load_relaxed_system(from + i + k * kPullThreads);
#pragma unroll
      for (unsigned k = 0; k < 4; ++k)
        if (i + k * kPullThreads < vectors) store_vector(to + i + k * kPullThreads, loaded[k]);
    }
    begin = vectors * 4;
  }
  // Up to 3 elements, or all of them if the range is not aligned. 64 bits: the sum may exceed 2^32.
  for (std::uint64_t i = std::uint64_t{begin} + threadIdx.x; i < count; i += kPullThreads)
    out[i] = load_relaxed_system(in + i);
}

// Called by all threads of the block.
__device__ std::uint64_t pull_in_place(const PulledPiece& piece, Found& found) {
  if (threadIdx.x == 0) found.version = load_acquire_system(piece.word);  // (inplace.P3) pairs with inplace.P2
  __syncthreads();
  copy_from_system(piece.out, piece.elements, piece.count);
  return found.version;
}

// Called by thread 0.
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

// Called by all threads of the block.
__device__ std::uint64_t pull_versioned(const PulledPiece& piece, const ChunkFormat& format, Found& found) {
  for (int attempt = 0; attempt < kPullAttempts; ++attempt) {
    if (threadIdx.x == 0) find_buffer(piece, format, found);
    __syncthreads();
    if (found.buffer == nullptr) return kPullTorn;
    copy_from_system(piece.out, reinterpret_cast<const float*>(found.buffer + format.header_bytes),
                     piece.count);  // (slot.R2)
    fence_system();                 // (slot.R3)
    __syncthreads();
    if (threadIdx.x == 0) {
      const std::uint64_t stamp = load_relaxed_system(reinterpret_cast<const std::uint64_t*>(found.buffer));
      found.whole = stamp == (piece.stamp | found.version);
    }
    __syncthreads();
    // Thread 0 passes two more barriers before it writes `whole` again, so all threads have read it by then.
    if (found.whole) return found.version;
  }
  return kPullTorn;
}

__global__ void __launch_bounds__(kPullThreads)
    pull_kernel(const PulledPiece* pieces, std::uint32_t count, std::uint64_t* results, ChunkFormat format) {
  __shared__ PulledPiece piece;
  __shared__ Found found;
  for (std::uint64_t i = blockIdx.x; i < count; i += gridDim.x) {
    // In one request, because the list may be in host memory.
    if (threadIdx.x < kPieceWords)
      reinterpret_cast<std::uint64_t*>(&piece)[threadIdx.x] =
          reinterpret_cast<const std::uint64_t*>(pieces + i)[threadIdx.x];
    __syncthreads();
    const std::uint64_t result =
        piece.elements == nullptr ? pull_versioned(piece, format, found) : pull_in_place(piece, found);
    // A reader of the result sees the copies of all threads: the release covers everything before the barrier. After
    // the barrier no thread reads `piece` any more.
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

}  // namespace ps_shm::kernels
