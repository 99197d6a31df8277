// Softmax cross-entropy of a batch of logits, and its gradient.
//
// Stable for all finite logits: the row's maximum is subtracted before the exponential, so the largest exponential is 1
// and the logarithm's argument lies between 1 and `classes`. A NaN or infinity in a row shows in the loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ps_shm::train {

// Sums, not means, so that parts of a data set can be added.
struct LossSum {
  double loss = 0.0;
  std::size_t correct = 0;  // rows whose largest logit (the first if equal) is the label's; never a row with NaN
};

// Requires (here and below): logits holds one row of `classes` values for each label; each label is below classes.
LossSum softmax_cross_entropy(std::span<const float> logits, std::span<const std::uint8_t> labels, std::size_t classes);

// Returns the mean loss, and overwrites the logits with its gradient by them. Requires: at least one label.
float softmax_cross_entropy_gradient(std::span<float> logits, std::span<const std::uint8_t> labels,
                                     std::size_t classes);

}  // namespace ps_shm::train
