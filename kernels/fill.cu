// Sets floats to one value. cudaMemset sets bytes, so it can do this for few values only.
#include "launch.cuh"
#include "model_launchers.hpp"

namespace ps_shm::kernels {
namespace {

__global__ void __launch_bounds__(kThreads) fill_kernel(float* values, float value, std::size_t count) {
  for (std::size_t i = first_element(); i < count; i += element_stride()) values[i] = value;
}

const Loadable loadable{fill_kernel};

}  // namespace

cudaError_t fill(float* values, float value, std::size_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return launch(fill_kernel, blocks_for(count, kThreads), kThreads, stream, values, value, count);
}

}  // namespace ps_shm::kernels
