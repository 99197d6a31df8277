#include "train/models/dense/loss.hpp"

#include <algorithm>
#include <cmath>

namespace ps_shm::train {

LossSum softmax_cross_entropy(std::span<const float> logits, std::span<const std::uint8_t> labels,
                              std::size_t classes) {
  LossSum sum;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto row = logits.subspan(i * classes, classes);
    const auto largest = std::max_element(row.begin(), row.end());
    float exponentials = 0.0F;
    for (const float logit : row) exponentials += std::exp(logit - *largest);
    const float loss = std::log(exponentials) - (row[labels[i]] - *largest);
    sum.loss += static_cast<double>(loss);
    if (std::isfinite(loss) && largest - row.begin() == labels[i]) ++sum.correct;
  }
  return sum;
}

float softmax_cross_entropy_gradient(std::span<float> logits, std::span<const std::uint8_t> labels,
                                     std::size_t classes) {
  double total = 0.0;
  const float share = 1.0F / static_cast<float>(labels.size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto row = logits.subspan(i * classes, classes);
    const float largest = *std::max_element(row.begin(), row.end());
    const float label_logit = row[labels[i]] - largest;
    float exponentials = 0.0F;
    for (float& logit : row) {
      logit = std::exp(logit - largest);
      exponentials += logit;
    }
    total += static_cast<double>(std::log(exponentials) - label_logit);
    for (float& logit : row) logit *= share / exponentials;
    row[labels[i]] -= share;
  }
  return static_cast<float>(total / static_cast<double>(labels.size()));
}

}  // namespace ps_shm::train
