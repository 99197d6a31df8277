// Losses of one example at its score, each with its slope, in forms that neither overflow nor lose precision.
#pragma once

#include <algorithm>
#include <cmath>

namespace ps_shm::train {

struct LossAt {
  float loss, slope;  // slope: d loss / d score
};

// `sign` is the label as -1 or 1. log(1 + exp(-m)) = max(0, -m) + log(1 + exp(-|m|)), with the margin m = sign * score.
inline LossAt logistic_loss(float sign, float score) noexcept {
  const float margin = sign * score, small = std::exp(-std::fabs(margin));
  const float share = (margin > 0 ? small : 1.0F) / (1.0F + small);  // 1 / (1 + exp(m))
  return {std::max(0.0F, -margin) + std::log1p(small), -sign * share};
}

inline LossAt hinge_loss(float sign, float score) noexcept {
  const float left = 1.0F - sign * score;
  return left < 0 ? LossAt{0.0F, 0.0F} : LossAt{left, -sign};
}

inline LossAt squared_loss(float label, float score) noexcept {
  const float error = score - label;
  return {0.5F * error * error, error};
}

}  // namespace ps_shm::train
