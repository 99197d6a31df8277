// What the models of sparse examples share: how they read labels, how their rows begin, and the functions that make them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "train/sparse/sparse_model.hpp"

namespace ps::train {

// Two labels: the greater one is 1, the other one -1. Where all are the same, those above 0 are 1.
class LabelSigns {
 public:
  explicit LabelSigns(const SparseInfo& info)
      : middle_(info.distinct_labels < 2 ? 0.0F : info.label_min + (info.label_max - info.label_min) / 2) {}
  bool is_positive(float label) const noexcept { return label > middle_; }
  float of(float label) const noexcept { return is_positive(label) ? 1.0F : -1.0F; }

 private:
  float middle_;
};

// For ratings: what a score begins with.
float mean_label(const SparseInfo& info);

// Rows {0, u_1 .. u_k}: the u are uniform with mean 0 and the given deviation, a function of seed, row and column.
void fill_factor_rows(std::uint64_t seed, std::uint64_t first_row, std::size_t width, double deviation,
                      std::span<float> out);

std::unique_ptr<SparseModel> make_logistic(const SparseInfo& info, const SparseModelOptions& options);
std::unique_ptr<SparseModel> make_svm(const SparseInfo& info, const SparseModelOptions& options);
std::unique_ptr<SparseModel> make_matrix_factorisation(const SparseInfo& info, const SparseModelOptions& options);
std::unique_ptr<SparseModel> make_factorisation_machine(const SparseInfo& info, const SparseModelOptions& options);

}  // namespace ps::train
