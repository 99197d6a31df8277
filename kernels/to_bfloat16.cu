// Rounds floats to bfloat16 in device memory, for gradients that a copy engine brings to the host. The format is the
// upper half of a float32, so the relative error is at most 2^-8.
#include "bfloat16.cuh"
#include "kernels.hpp"
#include "launch.cuh"

namespace ps::kernels {
namespace {

__global__ void __launch_bounds__(kThreads)
    to_bfloat16_kernel(const float* from, std::uint16_t* to, std::size_t count) {
  copy_to_bfloat16(from, to, count, first_element(), element_stride());
}

const Loadable loadable{to_bfloat16_kernel};

}  // namespace

cudaError_t to_bfloat16(const float* from, std::uint16_t* to, std::size_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return launch(to_bfloat16_kernel, blocks_for(count, kThreads * 8), kThreads, stream, from, to, count);
}

}  // namespace ps::kernels
