// The factorisation machine: a linear model plus the products of all pairs of features, in time linear in both. With
// t_i = v_i x_i the sum over pairs is half of (sum t_i)^2 - sum t_i^2, factor by factor (Rendle 2010, lemma 3.1).
#include <algorithm>
#include <vector>

#include "train/models/sparse/sparse_models.hpp"

namespace ps_shm::train {
namespace {

class FactorisationMachine final : public SparseModel {
 public:
  FactorisationMachine(const SparseInfo& info, const SparseModelOptions& options)
      : table_{"factors", {info.features, std::size_t{1} + options.factors}, true},
        signs_(info),
        factors_(options.factors),
        is_rating_(info.kind == SparseKind::kRatings),
        loss_(is_rating_ ? kernels::SparseLoss::kSquared : kernels::SparseLoss::kLogistic),
        mean_(is_rating_ ? mean_label(info) : 0.0F),
        sums_(factors_),
        squares_(factors_) {}

  const ParameterSpec& table() const override { return table_; }

  void initialize(std::uint64_t seed, std::uint64_t first_row, std::span<float> out) const override {
    fill_factor_rows(seed, first_row, 1 + factors_, out);
  }

  std::span<const std::uint32_t> touched(const SparseExample& example) override { return example.ids; }

  float initial_range() const override { return kFactorRange; }

  float gradient(const SparseExample& example, const float* rows, float* gradients) override {
    const kernels::LossAt at = kernels::loss_at(loss_, target(example.label), score(example, rows));
    const float* sums = sums_.data();
    for (const float x : example.values) {
      const float by_x = at.slope * x;
      *gradients++ = by_x;
      ++rows;
      for (std::size_t k = 0; k < factors_; ++k) gradients[k] = by_x * (sums[k] - rows[k] * x);
      gradients += factors_;
      rows += factors_;
    }
    return at.loss;
  }

  // Stores the sums of t_i as a side effect.
  float score(const SparseExample& example, const float* rows) override {
    float* const sums = sums_.data();
    float* const squares = squares_.data();
    std::fill_n(sums, factors_, 0.0F);
    std::fill_n(squares, factors_, 0.0F);
    float score = mean_;
    for (const float x : example.values) {
      score += *rows++ * x;
      for (std::size_t k = 0; k < factors_; ++k) {
        const float t = rows[k] * x;
        sums[k] += t;
        squares[k] += t * t;
      }
      rows += factors_;
    }
    for (std::size_t k = 0; k < factors_; ++k) score += 0.5F * (sums[k] * sums[k] - squares[k]);
    return score;
  }

  kernels::SparseForm form() const override {
    return {kernels::SparseScore::kFactors, loss_, static_cast<std::uint32_t>(1 + factors_), mean_};
  }
  float target(float label) const override { return is_rating_ ? label : signs_.of(label); }
  bool is_classifier() const override { return !is_rating_; }
  bool gives_probabilities() const override { return !is_rating_; }
  bool is_positive(float label) const override { return signs_.is_positive(label); }

 private:
  ParameterSpec table_;
  LabelSigns signs_;
  std::size_t factors_;
  bool is_rating_;
  kernels::SparseLoss loss_;
  float mean_;
  std::vector<float> sums_, squares_;
};

}  // namespace

std::unique_ptr<SparseModel> make_factorisation_machine(const SparseInfo& info, const SparseModelOptions& options) {
  return std::make_unique<FactorisationMachine>(info, options);
}

}  // namespace ps_shm::train
