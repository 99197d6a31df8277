// The backward pass of the rectifier: turns a gradient of its outputs into one of its inputs, which is 0 if the output
// is 0.
#include "launch.cuh"
#include "model_launchers.hpp"

namespace ps_shm::kernels {
namespace {

__global__ void __launch_bounds__(kThreads)
    relu_gradient_kernel(float* gradient, const float* activations, std::size_t count) {
  for (std::size_t i = first_element(); i < count; i += element_stride())
    if (activations[i] <= 0) gradient[i] = 0.0F;
}

const Loadable loadable{relu_gradient_kernel};

}  // namespace

cudaError_t relu_gradient(float* gradient, const float* activations, std::size_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return launch(relu_gradient_kernel, blocks_for(count, kThreads), kThreads, stream, gradient, activations, count);
}

}  // namespace ps_shm::kernels
