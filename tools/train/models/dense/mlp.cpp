// The multi-layer perceptron of the distributed TensorFlow 1 tutorials: one hidden layer of rectified linear units.
#include <algorithm>
#include <cmath>

#include "train/models/dense/classifier.hpp"
#include "train/models/dense/gemm.hpp"

namespace ps_shm::train {
namespace {

// 500 hidden units for the 784 pixels of MNIST, 128 for the 64 of the embedded digits.
std::size_t hidden_units(std::size_t features) { return std::clamp<std::size_t>(2 * features, 32, 500); }

class Mlp final : public Classifier {
 public:
  Mlp(std::size_t features, std::size_t hidden, std::size_t classes)
      : Classifier({{"hid_w", {features, hidden}, true},
                    {"hid_b", {hidden}, false},
                    {"sm_w", {hidden, classes}, true},
                    {"sm_b", {classes}, false}},
                   classes),
        features_(features),
        hidden_(hidden) {}

 private:
  enum Parameter : std::size_t { kHiddenWeights, kHiddenBiases, kOutputWeights, kOutputBiases };

  void forward(std::span<const float* const> parameters, const Batch& batch, float* logits) override {
    activations_.resize(batch.count * hidden_);
    broadcast_row(parameters[kHiddenBiases], batch.count, hidden_, activations_.data());
    multiply({batch.images.data(), batch.count, features_}, {parameters[kHiddenWeights], features_, hidden_}, 1.0F,
             activations_.data());
    // The larger of value and 0 (exact below half the largest float) without a branch: about half the units are off, in
    // an order that a processor cannot predict (measured: half of the whole gradient's time). A NaN stays NaN and shows
    // in the loss.
    for (float& value : activations_) value = 0.5F * (value + std::abs(value));
    broadcast_row(parameters[kOutputBiases], batch.count, classes(), logits);
    multiply({activations_.data(), batch.count, hidden_}, {parameters[kOutputWeights], hidden_, classes()}, 1.0F,
             logits);
  }

  void backward(std::span<const float* const> parameters, const Batch& batch, const float* logit_gradient,
                std::span<float* const> gradients) override {
    const Matrix by_logits{logit_gradient, batch.count, classes()};
    const Matrix activations{activations_.data(), batch.count, hidden_};
    multiply_transposed_left(activations, by_logits, gradients[kOutputWeights]);
    sum_rows(by_logits, gradients[kOutputBiases]);

    activation_gradient_.resize(activations_.size());
    multiply_transposed_right(by_logits, {parameters[kOutputWeights], hidden_, classes()}, activation_gradient_.data());
    for (std::size_t i = 0; i < activations_.size(); ++i) {
      activation_gradient_[i] *= static_cast<float>(activations_[i] > 0.0F);
    }
    const Matrix by_hidden{activation_gradient_.data(), batch.count, hidden_};
    multiply_transposed_left({batch.images.data(), batch.count, features_}, by_hidden, gradients[kHiddenWeights]);
    sum_rows(by_hidden, gradients[kHiddenBiases]);
  }

  std::size_t features_;
  std::size_t hidden_;
  std::vector<float> activations_;  // count x hidden, like the next member
  std::vector<float> activation_gradient_;
};

}  // namespace

std::unique_ptr<Model> make_mlp(std::size_t features, std::size_t classes) {
  return std::make_unique<Mlp>(features, hidden_units(features), classes);
}

}  // namespace ps_shm::train
