// A scaled difference, factor * (a - b): local SGD pushes it after some steps on a local copy.
#include "launch.cuh"
#include "model_launchers.hpp"

namespace ps_shm::kernels {
namespace {

__global__ void __launch_bounds__(kThreads)
    difference_kernel(const float* a, const float* b, float factor, float* out, std::size_t count) {
  for (std::size_t i = first_element(); i < count; i += element_stride()) out[i] = factor * (a[i] - b[i]);
}

const Loadable loadable{difference_kernel};

}  // namespace

cudaError_t difference(const float* a, const float* b, float factor, float* out, std::size_t count,
                       cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return launch(difference_kernel, blocks_for(count, kThreads), kThreads, stream, a, b, factor, out, count);
}

}  // namespace ps_shm::kernels
