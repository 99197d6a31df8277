// Metrics over a set of sparse examples: loss, accuracy, area under the ROC curve, log loss, root mean square error.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "train/data/sparse/sparse_data.hpp"
#include "train/data/sparse/sparse_stream.hpp"
#include "train/models/sparse/sparse_model.hpp"

namespace ps_shm::train {

struct Scored {
  float score = 0.0F;
  bool is_positive = false;
};

// The area under the ROC curve: the probability that a positive example has a higher score than a negative one, ties
// counted half (Fawcett, An introduction to ROC analysis, 2006). Sorts `all`. NaN if one of the classes is missing,
// or a score is NaN.
double area_under_curve(std::span<Scored> all);

// Accumulates the metrics of a set of examples. For a classifier it keeps 8 bytes per example, to order the scores.
class MetricSum {
 public:
  explicit MetricSum(const SparseModel& model) : model_(model) {}

  void add(float label, float score);
  SparseMetrics result();  // Requires: at least one example, otherwise all are NaN

 private:
  const SparseModel& model_;
  std::uint64_t examples_ = 0, correct_ = 0;
  double loss_ = 0.0;
  std::vector<Scored> scored_;
};

// The metrics of the examples of a part, with the rows of `table`. A test set may have features that the training set
// with its `features` lacks: they are omitted. Throws Error if the part has no examples.
SparseMetrics evaluate(SparseModel& model, std::span<const float> table, std::uint64_t features, const SparseData& data,
                       const SparsePart& part);

// Copies the rows of keys, and says of each whether it has one.
using PullKeys = std::function<void(std::span<const std::uint64_t> keys, std::span<float> rows, std::span<bool> found)>;

// The same of keyed data. Keys without a row are omitted.
SparseMetrics evaluate(SparseModel& model, const PullKeys& pull, const SparseData& data, const SparsePart& part);

}  // namespace ps_shm::train
