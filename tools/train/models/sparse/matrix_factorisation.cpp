// Matrix factorisation of ratings, with biases. The first of an example's two rows is the user's.
#include "train/models/sparse/sparse_models.hpp"

namespace ps_shm::train {
namespace {

class MatrixFactorisation final : public SparseModel {
 public:
  MatrixFactorisation(const SparseInfo& info, const SparseModelOptions& options)
      : table_{"factors", {info.features, std::size_t{1} + options.factors}, true},
        width_(std::size_t{1} + options.factors),
        mean_(mean_label(info)) {}

  const ParameterSpec& table() const override { return table_; }

  void initialize(std::uint64_t seed, std::uint64_t first_row, std::span<float> out) const override {
    fill_factor_rows(seed, first_row, width_, out);
  }

  std::span<const std::uint32_t> touched(const SparseExample& example) override { return example.ids; }

  float initial_range() const override { return kFactorRange; }

  float gradient(const SparseExample& example, const float* rows, float* gradients) override {
    const kernels::LossAt at = kernels::squared_loss(example.label, score(example, rows));
    gradients[0] = gradients[width_] = at.slope;
    for (std::size_t k = 1; k < width_; ++k) {
      gradients[k] = at.slope * rows[width_ + k];
      gradients[width_ + k] = at.slope * rows[k];
    }
    return at.loss;
  }

  // If the training data lacks the user or the item, only the other one contributes.
  float score(const SparseExample& example, const float* rows) override {
    if (example.values.size() < 2) return example.values.empty() ? mean_ : mean_ + rows[0];
    float sum = mean_ + rows[0] + rows[width_];
    for (std::size_t k = 1; k < width_; ++k) sum += rows[k] * rows[width_ + k];
    return sum;
  }

  kernels::SparseForm form() const override {
    return {kernels::SparseScore::kPair, kernels::SparseLoss::kSquared, static_cast<std::uint32_t>(width_), mean_};
  }
  float target(float label) const override { return label; }
  bool is_classifier() const override { return false; }
  bool gives_probabilities() const override { return false; }
  bool is_positive(float) const override { return false; }

 private:
  ParameterSpec table_;
  std::size_t width_;
  float mean_;
};

}  // namespace

std::unique_ptr<SparseModel> make_matrix_factorisation(const SparseInfo& info, const SparseModelOptions& options) {
  return std::make_unique<MatrixFactorisation>(info, options);
}

}  // namespace ps_shm::train
