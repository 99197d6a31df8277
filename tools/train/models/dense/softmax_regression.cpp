// Softmax regression: one linear layer, a convex problem.
#include "train/models/dense/classifier.hpp"
#include "train/models/dense/gemm.hpp"

namespace ps_shm::train {
namespace {

class SoftmaxRegression final : public Classifier {
 public:
  SoftmaxRegression(std::size_t features, std::size_t classes)
      : Classifier({{"sm_w", {features, classes}, true}, {"sm_b", {classes}, false}}, classes), features_(features) {}

 private:
  enum Parameter : std::size_t { kWeights, kBiases };

  void forward(std::span<const float* const> parameters, const Batch& batch, float* logits) override {
    broadcast_row(parameters[kBiases], batch.count, classes(), logits);
    multiply({batch.images.data(), batch.count, features_}, {parameters[kWeights], features_, classes()}, 1.0F, logits);
  }

  void backward(std::span<const float* const>, const Batch& batch, const float* logit_gradient,
                std::span<float* const> gradients) override {
    const Matrix by_logits{logit_gradient, batch.count, classes()};
    multiply_transposed_left({batch.images.data(), batch.count, features_}, by_logits, gradients[kWeights]);
    sum_rows(by_logits, gradients[kBiases]);
  }

  std::size_t features_;
};

}  // namespace

std::unique_ptr<Model> make_softmax_regression(std::size_t features, std::size_t classes) {
  return std::make_unique<SoftmaxRegression>(features, classes);
}

}  // namespace ps_shm::train
