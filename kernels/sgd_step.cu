// A step of plain SGD (Robbins and Monro 1951) on parameters in device memory, as in src/update/rule_table.hpp with
// scale 1, in the same order and with the same roundings: the intrinsics keep the compiler from fusing products and
// sums, so the bits are the same as the CPU's.
#include "launch.cuh"
#include "model_launchers.hpp"

namespace ps_shm::kernels {
namespace {

// kPlain: nothing is clipped, decayed or regularised. Then the CPU omits those products, too; 0 times infinity would be
// NaN.
template <bool kPlain>
__global__ void __launch_bounds__(kThreads) sgd_kernel(float* parameters, const float* gradient, std::size_t count,
                                                       float rate, float l2, float decay, float clip_value) {
  const float limit = limit_of(clip_value);
  for (std::size_t i = first_element(); i < count; i += element_stride()) {
    float value = parameters[i], g = gradient[i];
    if constexpr (!kPlain) {
      g = __fadd_rn(clip(g, limit), __fmul_rn(l2, value));
      value = __fsub_rn(value, __fmul_rn(decay, value));
    }
    parameters[i] = __fsub_rn(value, __fmul_rn(rate, g));
  }
}

const Loadable loadable[] = {Loadable{sgd_kernel<true>}, Loadable{sgd_kernel<false>}};

}  // namespace

cudaError_t sgd_step(float* parameters, const float* gradient, std::size_t count, float rate, float l2,
                     float weight_decay, float clip_value, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const float decay = rate * weight_decay;
  const bool is_plain = l2 == 0 && decay == 0 && !(clip_value > 0);
  return launch(is_plain ? sgd_kernel<true> : sgd_kernel<false>, blocks_for(count, kThreads), kThreads, stream,
                parameters, gradient, count, rate, l2, decay, clip_value);
}

}  // namespace ps_shm::kernels
