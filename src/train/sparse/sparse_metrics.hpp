// Metrics over a set of sparse examples: loss, accuracy, area under the ROC curve, log loss, root mean square error.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/sparse/sparse_data.hpp"
#include "train/sparse/sparse_model.hpp"
#include "train/sparse/sparse_stream.hpp"

namespace ps::train {

struct Scored {
  float score = 0.0F;
  bool is_positive = false;
};

// The area under the ROC curve: how probable it is that a positive example has a higher score than a negative one, a tie
// counted half (Fawcett, An introduction to ROC analysis, 2006). Sorts `all`. NaN where one of the two kinds is missing,
// or a score is NaN.
double area_under_curve(std::span<Scored> all);

// Sums up what the examples of a set come to. Of a classifier it keeps 8 bytes an example, for the order of the scores.
class MetricSum {
 public:
  explicit MetricSum(const SparseModel& model) : model_(model) {}

  void add(float label, float score);
  SparseMetrics result();  // Requires: an example at least, else all are NaN

 private:
  const SparseModel& model_;
  std::uint64_t examples_ = 0, correct_ = 0;
  double loss_ = 0.0;
  std::vector<Scored> scored_;
};

// Over the examples of a part, by the rows of `table`. A test set may have features that the training set with its
// `features` lacks: they are left out. Throws Error where the part has no example.
SparseMetrics evaluate(SparseModel& model, std::span<const float> table, std::uint64_t features, const SparseData& data,
                       const SparsePart& part);

}  // namespace ps::train
