// The backward pass of the rectifier: turns a gradient of its outputs into one of its inputs, which is 0 if the output
// is 0, and sums its rows, which is the gradient of the layer's bias.
//
// For few rows one kernel does both; else the first has a kernel of its own, since that of the sums has only one block
// for 32 columns. The bits are the same.
#include "launch.cuh"
#include "model_launchers.hpp"
#include "sum_rows.cuh"

namespace ps_shm::kernels {
namespace {

// The largest batch for one kernel: 32 rows for each thread. Chosen without a GPU.
constexpr int kOneKernel = 32 * static_cast<int>(kSumWarps);

__device__ float rectified(float gradient, float activation) { return activation <= 0 ? 0.0F : gradient; }

__global__ void __launch_bounds__(kThreads)
    relu_gradient_kernel(float* gradient, const float* activations, std::size_t count) {
  for (std::size_t i = first_element(); i < count; i += element_stride())
    gradient[i] = rectified(gradient[i], activations[i]);
}

__global__ void __launch_bounds__(kSumThreads)
    gradients_kernel(float* gradient, const float* activations, int rows, int columns, float* bias_gradient) {
  sum_rows([=](std::size_t i) { return gradient[i] = rectified(gradient[i], activations[i]); }, rows, columns,
           blockIdx.x * kSumColumns, bias_gradient);
}

const Loadable loadable[] = {Loadable{relu_gradient_kernel}, Loadable{gradients_kernel}, Loadable{sum_kernel}};

}  // namespace

cudaError_t relu_gradient(float* gradient, const float* activations, int rows, int columns, float* bias_gradient,
                          cudaStream_t stream) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  const unsigned blocks = blocks_of_sums(columns);
  if (rows <= kOneKernel)
    return launch(gradients_kernel, blocks, kSumThreads, stream, gradient, activations, rows, columns, bias_gradient);
  const std::size_t count = static_cast<std::size_t>(rows) * columns;
  const cudaError_t error =
      launch(relu_gradient_kernel, blocks_for(count, kThreads), kThreads, stream, gradient, activations, count);
  if (error != cudaSuccess) return error;
  return launch(sum_kernel, blocks, kSumThreads, stream, gradient, rows, columns, bias_gradient);
}

}  // namespace ps_shm::kernels
