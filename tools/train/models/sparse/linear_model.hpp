// Linear models of sparse examples: one weight per feature; they differ in the loss.
#pragma once

#include <algorithm>
#include <vector>

#include "train/models/sparse/sparse_models.hpp"

namespace ps_shm::train {

template <kernels::SparseLoss kLoss>
class LinearModel : public SparseModel {
 public:
  LinearModel(const SparseInfo& info, const SparseModelOptions& options, bool gives_probabilities)
      : table_{"w", {info.features + (options.bias ? 1 : 0), 1}, true},
        signs_(info),
        bias_row_(static_cast<std::uint32_t>(info.features)),
        has_bias_(options.bias),
        gives_probabilities_(gives_probabilities) {}

  const ParameterSpec& table() const final { return table_; }

  void initialize(std::uint64_t, std::uint64_t, std::span<float> out) const final {
    std::fill(out.begin(), out.end(), 0.0F);
  }

  std::span<const std::uint32_t> touched(const SparseExample& example) final {
    if (!has_bias_) return example.ids;
    touched_.assign(example.ids.begin(), example.ids.end());
    touched_.push_back(bias_row_);
    return touched_;
  }

  std::span<const std::uint64_t> touched_keys(const SparseExample& example) final {
    if (!has_bias_) return example.keys;
    touched_keys_.assign(example.keys.begin(), example.keys.end());
    touched_keys_.push_back(kBiasKey);
    return touched_keys_;
  }

  float gradient(const SparseExample& example, const float* rows, float* gradients) final {
    const kernels::LossAt at = kernels::loss_at(kLoss, signs_.of(example.label), LinearModel::score(example, rows));
    const std::size_t count = example.values.size();
    for (std::size_t i = 0; i < count; ++i) gradients[i] = at.slope * example.values[i];
    if (has_bias_) gradients[count] = at.slope;
    return at.loss;
  }

  float score(const SparseExample& example, const float* rows) final {
    const std::size_t count = example.values.size();
    float sum = has_bias_ ? rows[count] : 0.0F;
    for (std::size_t i = 0; i < count; ++i) sum += rows[i] * example.values[i];
    return sum;
  }

  kernels::SparseForm form() const final { return {kernels::SparseScore::kLinear, kLoss, 1, 0.0F}; }
  float target(float label) const final { return signs_.of(label); }
  bool is_classifier() const final { return true; }
  bool gives_probabilities() const final { return gives_probabilities_; }
  bool is_positive(float label) const final { return signs_.is_positive(label); }

 private:
  ParameterSpec table_;
  LabelSigns signs_;
  std::uint32_t bias_row_;
  bool has_bias_, gives_probabilities_;
  std::vector<std::uint32_t> touched_;
  std::vector<std::uint64_t> touched_keys_;
};

}  // namespace ps_shm::train
