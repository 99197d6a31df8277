// Adds scaled chunks of gradients to in-place variables in host memory, by one atomic add of system scope per element:
// Hogwild! (Niu et al. 2011) without lost updates. Only for links with native atomics (NVLink-C2C): on PCIe such an add
// is a load and a store, and loses adds that come in between. The last bits depend on the order of the adds.
#include "launch.cuh"
#include "system_memory.cuh"
#include "transfer_launchers.hpp"

namespace ps_shm::kernels {
namespace {

// Called by all threads of the block: adds elements [begin, end) individually.
__device__ void add_singly(const AddedPiece& piece, std::uint32_t begin, std::uint32_t end, float scale, float limit) {
  for (std::uint64_t i = std::uint64_t{begin} + threadIdx.x; i < end; i += kThreads)
    add_relaxed_system(piece.to + i, scale * clip(piece.from[i], limit));
}

// Called by all threads of the block. The address of a vector must be a multiple of 16.
__device__ void add_by_fours(const AddedPiece& piece, float scale, float limit) {
#if __CUDA_ARCH__ >= 900
  const auto past = static_cast<std::uint32_t>(reinterpret_cast<std::size_t>(piece.to) / sizeof(float) % 4);
  const std::uint32_t head = min((4 - past) % 4, piece.count);
  const std::uint32_t vectors = (piece.count - head) / 4;
  add_singly(piece, 0, head, scale, limit);
  for (std::uint32_t i = threadIdx.x; i < vectors; i += kThreads) {
    const float* from = piece.from + head + std::uint64_t{i} * 4;
    const float4 sum = make_float4(scale * clip(from[0], limit), scale * clip(from[1], limit),
                                   scale * clip(from[2], limit), scale * clip(from[3], limit));
    add_relaxed_system(reinterpret_cast<float4*>(piece.to + head) + i, sum);
  }
  add_singly(piece, head + vectors * 4, piece.count, scale, limit);
#else
  add_singly(piece, 0, piece.count, scale, limit);
#endif
}

template <bool kWide>
__global__ void __launch_bounds__(kThreads)
    add_kernel(const AddedPiece* pieces, std::uint32_t count, float scale, float clip_value) {
  const float limit = limit_of(clip_value);
  for (std::uint64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const AddedPiece piece = pieces[i];
    if constexpr (kWide)
      add_by_fours(piece, scale, limit);
    else
      add_singly(piece, 0, piece.count, scale, limit);
  }
}

const Loadable loadable[] = {Loadable{add_kernel<true>}, Loadable{add_kernel<false>}};

}  // namespace

cudaError_t add_pieces(const AddedPiece* pieces, std::uint32_t count, float scale, float clip_value, bool wide,
                       cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return launch(wide ? add_kernel<true> : add_kernel<false>, blocks_for(count, 1), kThreads, stream, pieces, count,
                scale, clip_value);
}

}  // namespace ps_shm::kernels
