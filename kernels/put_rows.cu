// Puts rows that the CPU has decided of a pull (pull_keys.cu) into their places among all of its rows. They come packed, in
// one copy; a warp stores one row at a time.
#include "launch.cuh"
#include "transfer_launchers.hpp"

namespace ps_shm::kernels {
namespace {

constexpr unsigned kLanes = 32, kRows = kThreads / kLanes;  // of a block

__global__ void __launch_bounds__(kThreads) put_kernel(DecidedRows rows, float* out, bool* found) {
  for (std::size_t i = std::size_t{blockIdx.x} * kRows + threadIdx.y; i < rows.count;
       i += std::size_t{gridDim.x} * kRows) {
    const float* const from = rows.values + i * rows.elements;
    float* const to = out + rows.places[i] * rows.elements;
    for (std::uint32_t e = threadIdx.x; e < rows.elements; e += kLanes) to[e] = from[e];
    if (found != nullptr && threadIdx.x == 0) found[rows.places[i]] = rows.found[i];
  }
}

const Loadable loadable{put_kernel};

}  // namespace

cudaError_t put_rows(const DecidedRows& rows, float* out, bool* found, cudaStream_t stream) {
  if (rows.count == 0) return cudaSuccess;
  return launch(put_kernel, blocks_for(rows.count, kRows), dim3(kLanes, kRows), stream, rows, out, found);
}

}  // namespace ps_shm::kernels
