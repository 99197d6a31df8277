// A step of plain SGD (Robbins and Monro 1951) on parameters in device memory, as src/update/rules.hpp's sgd_one has it
// with scale 1, in its order and with its roundings: the intrinsics keep the compiler from fusing products and
// sums, so that the bits are the CPU's.
#include "kernels.hpp"
#include "launch.cuh"

namespace ps::kernels {
namespace {

__global__ void __launch_bounds__(kThreads) sgd_kernel(float* parameters, const float* gradient, std::size_t count,
                                                       float rate, float l2, float decay, float clip_value) {
  const float limit = limit_of(clip_value);
  for (std::size_t i = first_element(); i < count; i += element_stride()) {
    const float value = parameters[i];
    const float g = __fadd_rn(clip(gradient[i], limit), __fmul_rn(l2, value));
    parameters[i] = __fsub_rn(__fsub_rn(value, __fmul_rn(decay, value)), __fmul_rn(rate, g));
  }
}

const Loadable loadable{sgd_kernel};

}  // namespace

cudaError_t sgd_step(float* parameters, const float* gradient, std::size_t count, float rate, float l2,
                     float weight_decay, float clip_value, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return launch(sgd_kernel, blocks_for(count, kThreads), kThreads, stream, parameters, gradient, count, rate, l2,
                rate * weight_decay, clip_value);
}

}  // namespace ps::kernels
