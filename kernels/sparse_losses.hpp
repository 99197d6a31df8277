// Losses of one example at its score, each with its slope, in forms that neither overflow nor lose precision. Both
// compilers read this: the CPU and the GPU compute the same formulas.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define PS_SHM_HOST_DEVICE __host__ __device__
#else
#define PS_SHM_HOST_DEVICE
#endif

namespace ps_shm::kernels {

struct LossAt {
  float loss, slope;  // slope: d loss / d score
};

// `sign` is the label as -1 or 1. log(1 + exp(-m)) = max(0, -m) + log(1 + exp(-|m|)), with the margin m = sign * score.
PS_SHM_HOST_DEVICE inline LossAt logistic_loss(float sign, float score) noexcept {
  const float margin = sign * score, small = std::exp(-std::fabs(margin));
  const float share = (margin > 0 ? small : 1.0F) / (1.0F + small);  // 1 / (1 + exp(m))
  return {(margin < 0 ? -margin : 0.0F) + std::log1p(small), -sign * share};
}

PS_SHM_HOST_DEVICE inline LossAt hinge_loss(float sign, float score) noexcept {
  const float left = 1.0F - sign * score;
  return left < 0 ? LossAt{0.0F, 0.0F} : LossAt{left, -sign};
}

PS_SHM_HOST_DEVICE inline LossAt squared_loss(float label, float score) noexcept {
  const float error = score - label;
  return {0.5F * error * error, error};
}

enum class SparseLoss : std::uint32_t { kLogistic = 1, kHinge = 2, kSquared = 3 };

// `target` is the label as -1 or 1, or for kSquared the label itself.
PS_SHM_HOST_DEVICE inline LossAt loss_at(SparseLoss loss, float target, float score) noexcept {
  if (loss == SparseLoss::kLogistic) return logistic_loss(target, score);
  return loss == SparseLoss::kHinge ? hinge_loss(target, score) : squared_loss(target, score);
}

}  // namespace ps_shm::kernels
