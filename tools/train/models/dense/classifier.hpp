// Base of the models that end in a softmax over classes, and their factories.
//
// Such a model defines its parameters, its forward and its backward pass; loss, gradient and evaluation in
// chunks are implemented here.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "train/models/dense/model.hpp"

namespace ps_shm::train {

class Classifier : public Model {
 public:
  std::span<const ParameterSpec> parameters() const final { return specs_; }
  float gradient(std::span<const float* const> parameters, const Batch& batch, std::span<float* const> gradients) final;
  Metrics evaluate(std::span<const float* const> parameters, const Dataset& data) final;

 protected:
  Classifier(std::vector<ParameterSpec> specs, std::size_t classes) : specs_(std::move(specs)), classes_(classes) {}

  std::size_t classes() const { return classes_; }

 private:
  // Writes count x classes logits.
  virtual void forward(std::span<const float* const> parameters, const Batch& batch, float* logits) = 0;

  // Writes the gradients, given those with respect to the logits. Called after forward() with the same arguments,
  // whose results in the workspace may be used.
  virtual void backward(std::span<const float* const> parameters, const Batch& batch, const float* logit_gradient,
                        std::span<float* const> gradients) = 0;

  std::vector<ParameterSpec> specs_;
  std::size_t classes_;
  std::vector<float> logits_;
};

// Logits = images sm_w + sm_b.
std::unique_ptr<Model> make_softmax_regression(std::size_t features, std::size_t classes);

// Logits = relu(images hid_w + hid_b) sm_w + sm_b.
std::unique_ptr<Model> make_mlp(std::size_t features, std::size_t classes);

}  // namespace ps_shm::train
