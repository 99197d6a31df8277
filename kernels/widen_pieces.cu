// Converts chunks of bfloat16 in device memory to float32: the second half of a pull whose transfer dtype is bfloat16,
// behind the copies that have brought them there in the same stream. Each block converts one chunk at a time.
#include "bfloat16.cuh"
#include "launch.cuh"
#include "transfer_launchers.hpp"

namespace ps_shm::kernels {
namespace {

__global__ void __launch_bounds__(kThreads) widen_kernel(const WidenedPiece* pieces, std::uint32_t count) {
  for (std::uint64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const WidenedPiece piece = pieces[i];
    copy_from_bfloat16(piece.from, piece.to, piece.count, threadIdx.x, kThreads);
  }
}

const Loadable loadable{widen_kernel};

}  // namespace

cudaError_t widen_pieces(const WidenedPiece* pieces, std::uint32_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return launch(widen_kernel, blocks_for(count, 1), kThreads, stream, pieces, count);
}

}  // namespace ps_shm::kernels
