#include "train/models/sparse/sparse_metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "ps_shm/errors.hpp"

namespace ps_shm::train {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Calls known(example, rows) for each example of the part: it fills in the rows, and returns the example without what has
// none.
template <class Known>
SparseMetrics evaluate_with(SparseModel& model, const SparseData& data, const SparsePart& part, Known&& known) {
  MetricSum sum(model);
  std::vector<float> rows;
  bool is_empty = true;
  for_each_example(data, part, [&](const SparseExample& example) {
    is_empty = false;
    const SparseExample of_known = known(example, rows);
    sum.add(example.label, model.score(of_known, rows.data()));
  });
  if (is_empty) throw Error(fmt::format("{}: there are no test examples", data.name()));
  return sum.result();
}

}  // namespace

double area_under_curve(std::span<Scored> all) {
  if (std::any_of(all.begin(), all.end(), [](const Scored& one) { return std::isnan(one.score); })) return kNaN;
  std::sort(all.begin(), all.end(), [](const Scored& a, const Scored& b) { return a.score < b.score; });
  double negatives = 0, positives = 0, twice_area = 0;  // exact: integers
  for (std::size_t i = 0; i < all.size();) {
    double tied_negatives = 0, tied_positives = 0;
    const float score = all[i].score;
    for (; i < all.size() && all[i].score == score; ++i) ++(all[i].is_positive ? tied_positives : tied_negatives);
    twice_area += tied_positives * (2 * negatives + tied_negatives);
    negatives += tied_negatives;
    positives += tied_positives;
  }
  return negatives == 0 || positives == 0 ? kNaN : twice_area / (2 * negatives * positives);
}

void MetricSum::add(float label, float score) {
  ++examples_;
  loss_ += double(model_.loss(label, score));
  if (!model_.is_classifier()) return;
  const bool is_positive = model_.is_positive(label);
  if (!std::isnan(score)) correct_ += (score > 0) == is_positive;
  scored_.push_back({score, is_positive});
}

SparseMetrics MetricSum::result() {
  SparseMetrics metrics;
  const double count = double(examples_);
  metrics.loss = examples_ == 0 ? kNaN : loss_ / count;
  if (model_.is_classifier()) {
    metrics.accuracy = examples_ == 0 ? kNaN : double(correct_) / count;
    metrics.auc = area_under_curve(scored_);
    if (model_.gives_probabilities()) metrics.log_loss = metrics.loss;
  } else {
    metrics.rmse = std::sqrt(2 * metrics.loss);  // the loss is half of the squared error
  }
  return metrics;
}

SparseMetrics evaluate(SparseModel& model, std::span<const float> table, std::uint64_t features, const SparseData& data,
                       const SparsePart& part) {
  const std::size_t width = model.table().shape[1];
  return evaluate_with(model, data, part, [&](const SparseExample& example, std::vector<float>& rows) {
    SparseExample known = example;
    const auto end = std::lower_bound(example.ids.begin(), example.ids.end(), features);  // they ascend
    known.ids = example.ids.first(static_cast<std::size_t>(end - example.ids.begin()));
    known.values = example.values.first(known.ids.size());
    const auto touched = model.touched(known);
    rows.resize(touched.size() * width);
    for (std::size_t i = 0; i < touched.size(); ++i)
      std::copy_n(table.data() + std::size_t{touched[i]} * width, width, rows.data() + i * width);
    return known;
  });
}

SparseMetrics evaluate(SparseModel& model, const PullKeys& pull, const SparseData& data, const SparsePart& part) {
  const std::size_t width = model.table().shape[1];
  std::unique_ptr<bool[]> found;
  std::size_t room = 0;
  std::vector<float> values;
  return evaluate_with(model, data, part, [&](const SparseExample& example, std::vector<float>& rows) {
    const auto keys = model.touched_keys(example);
    if (keys.size() > room) found = std::make_unique<bool[]>(room = keys.size());
    rows.resize(keys.size() * width);
    pull(keys, rows, {found.get(), keys.size()});
    values.clear();
    std::size_t kept = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const bool is_bias = i == example.keys.size();
      if (!found[i] && !is_bias) continue;
      if (!is_bias) values.push_back(example.values[i]);
      std::copy_n(rows.data() + i * width, width, rows.data() + kept++ * width);
    }
    SparseExample known = example;
    known.values = values;
    return known;
  });
}

}  // namespace ps_shm::train
