// Touches the same rows as a linear model would, and adds 1 to each of their elements (with optimizer sgd and rate 1):
// what is missing in the end was lost. No arithmetic of a model's own, so it also shows what rows of any width cost.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "train/models/sparse/sparse_model.hpp"

namespace ps_shm::bench {

class CountingModel : public train::SparseModel {
 public:
  CountingModel(std::uint64_t rows, std::uint64_t width) : table_{"count", {rows, width}, true} {}

  const train::ParameterSpec& table() const final { return table_; }
  void initialize(std::uint64_t, std::uint64_t, std::span<float> out) const final {
    std::fill(out.begin(), out.end(), 0.0F);
  }
  std::span<const std::uint32_t> touched(const train::SparseExample& example) final { return example.ids; }
  float gradient(const train::SparseExample& example, const float*, float* gradients) final {
    std::fill_n(gradients, example.ids.size() * table_.shape[1], -1.0F);
    return 0.0F;
  }
  float score(const train::SparseExample&, const float*) final { return 0.0F; }
  kernels::SparseForm form() const final { return {}; }
  float target(float label) const final { return label; }
  bool is_classifier() const final { return false; }
  bool gives_probabilities() const final { return false; }
  bool is_positive(float) const final { return false; }

 private:
  train::ParameterSpec table_;
};

}  // namespace ps_shm::bench
