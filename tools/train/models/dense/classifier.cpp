#include "train/models/dense/classifier.hpp"

#include <algorithm>
#include <cassert>

#include "train/models/dense/loss.hpp"

namespace ps_shm::train {
namespace {

// Large enough for the products to run at full speed, small enough for a chunk's activations to stay in cache.
constexpr std::size_t kEvaluationBatch = 256;

}  // namespace

float Classifier::gradient(std::span<const float* const> parameters, const Batch& batch,
                           std::span<float* const> gradients) {
  assert(batch.count > 0 && parameters.size() == specs_.size() && gradients.size() == specs_.size());
  logits_.resize(batch.count * classes_);
  forward(parameters, batch, logits_.data());
  const float loss = softmax_cross_entropy_gradient(logits_, batch.labels, classes_);
  backward(parameters, batch, logits_.data(), gradients);
  return loss;
}

Metrics Classifier::evaluate(std::span<const float* const> parameters, const Dataset& data) {
  assert(data.count > 0 && parameters.size() == specs_.size());
  LossSum total;
  for (std::size_t first = 0; first < data.count; first += kEvaluationBatch) {
    const Batch batch = slice(data, first, std::min(kEvaluationBatch, data.count - first));
    logits_.resize(batch.count * classes_);
    forward(parameters, batch, logits_.data());
    const LossSum part = softmax_cross_entropy(logits_, batch.labels, classes_);
    total.loss += part.loss;
    total.correct += part.correct;
  }
  const auto count = static_cast<double>(data.count);
  return {total.loss / count, static_cast<double>(total.correct) / count};
}

}  // namespace ps_shm::train
