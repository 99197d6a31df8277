// Copies chunks of gradients to mapped host memory, unchanged or rounded to bfloat16, and flags each when it has
// arrived. Each of few blocks copies one chunk at a time, so the chunks arrive about in the order of the list, and the CPU
// can process the first ones while the others are on the bus. A reader that acquires arrived[i] sees all of chunk i: each
// thread's stores come before the barrier, and the barrier before the release, which covers everything before it in
// this order, of any thread (PTX ISA, causality order). No thread needs a fence of its own.
#include "bfloat16.cuh"
#include "launch.cuh"
#include "system_memory.cuh"
#include "transfer_launchers.hpp"

namespace ps_shm::kernels {
namespace {

constexpr unsigned kSendThreads = 512;

// Called by all threads of the block. Four loads of each thread are in flight, also in an incomplete last round: the
// compiler cannot move a load over a store, which might be to the same place.
__device__ void copy_floats(const float* from, float* to, std::uint32_t count) {
  std::uint64_t begin = 0;
  if (is_aligned(from, sizeof(float4)) && is_aligned(to, sizeof(float4))) {
    const std::uint32_t vectors = count / 4;
    for (std::uint32_t i = threadIdx.x; i < vectors; i += 4 * kSendThreads) {
      float4 loaded[4];
#pragma unroll
      for (unsigned k = 0; k < 4; ++k)
        if (i + k * kSendThreads < vectors) loaded[k] = reinterpret_cast<const float4*>(from)[i + k * kSendThreads];
#pragma unroll
      for (unsigned k = 0; k < 4; ++k)
        if (i + k * kSendThreads < vectors) reinterpret_cast<float4*>(to)[i + k * kSendThreads] = loaded[k];
    }
    begin = std::uint64_t{vectors} * 4;
  }
  for (std::uint64_t i = begin + threadIdx.x; i < count; i += kSendThreads) to[i] = from[i];
}

template <bool kAsBfloat16>
__global__ void __launch_bounds__(kSendThreads)
    send_kernel(const SentPiece* pieces, std::uint32_t count, std::uint32_t* arrived, const std::uint32_t* gate) {
  // All threads of a block have to take the same way, so one of them reads the word.
  if (gate != nullptr && __syncthreads_or(threadIdx.x == 0 && load_relaxed_system(gate) == kGateCancelled)) return;
  for (std::uint64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const SentPiece piece = pieces[i];
    if constexpr (kAsBfloat16)
      copy_to_bfloat16(piece.from, static_cast<std::uint16_t*>(piece.to), piece.count, threadIdx.x, kSendThreads);
    else
      copy_floats(piece.from, static_cast<float*>(piece.to), piece.count);
    __syncthreads();                                             // (gpu.G2)
    if (threadIdx.x == 0) store_release_system(arrived + i, 1);  // (gpu.G2) pairs with gpu.G3
  }
}

const Loadable loadable[] = {Loadable{send_kernel<true>}, Loadable{send_kernel<false>}};

}  // namespace

cudaError_t send_pieces(const SentPiece* pieces, std::uint32_t count, std::uint32_t* arrived, bool as_bfloat16,
                        const std::uint32_t* gate, std::uint32_t senders, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return launch(as_bfloat16 ? send_kernel<true> : send_kernel<false>, blocks_for(count < senders ? count : senders, 1),
                kSendThreads, stream, pieces, count, arrived, gate);
}

}  // namespace ps_shm::kernels
