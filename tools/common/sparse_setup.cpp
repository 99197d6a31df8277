#include "common/sparse_setup.hpp"

#include <fmt/format.h>

#include <string>

#include "common/workload.hpp"
#include "ps_shm/errors.hpp"
#include "train/loop/sparse_trainer.hpp"
#include "train/models/models.hpp"
#include "train/models/sparse/sparse_metrics.hpp"

namespace ps_shm::tools {
namespace {

train::SparseSourceOptions source_options(const SparseSettings& sparse) {
  train::SparseSourceOptions options;
  static_cast<train::LoadHooks&>(options) = load_hooks();
  options.format = sparse.format;
  options.first_index = sparse.first_index;
  options.hash_bits = sparse.hash_bits;
  options.cache = sparse.cache;
  options.keyed = sparse.keyed;
  return options;
}

train::SparseData read_data(const TrainingSettings& training, Worker* worker) {
  using Format = train::SparseSourceOptions::Format;
  train::SparseSourceOptions options = source_options(training.sparse);
  const train::ModelRow& row = train::model_row(training.model);
  if (row.takes_features != row.takes_ratings)
    options.otherwise = row.takes_ratings ? Format::kRatings : Format::kLibsvm;
  if (training.sparse.share_data && worker != nullptr) return train::SparseData::share(*worker, training.data, options);
  return train::SparseData::read(training.data, options);
}

// The test set has the same kind and ids as its training set.
train::SparseData read_test_data(const SparseSettings& sparse, const train::SparseData& training) {
  using Format = train::SparseSourceOptions::Format;
  const bool is_rating = training.info().kind == train::SparseKind::kRatings;
  train::SparseSourceOptions options = source_options(sparse);
  options.format = is_rating ? Format::kRatings : Format::kLibsvm;
  if (is_rating && !sparse.keyed) options.names_of = &training;
  options.first_index = training.info().first_index;
  options.features = training.info().features;
  return train::SparseData::read(sparse.test_data, options);
}

// "0 and 1", for messages.
std::string labels_of(const train::SparseInfo& info) {
  if (info.label_min == info.label_max) return fmt::format("{}", info.label_min);
  return fmt::format("{}{}{}", info.label_min, info.distinct_labels > 2 ? " to " : " and ", info.label_max);
}

// A model takes the greater label of its training set for the positive one, so other labels would be counted as if they
// were of the nearer class.
void check_labels(const train::SparseData& test, const train::SparseData& training) {
  const train::SparseInfo &these = test.info(), &those = training.info();
  const auto has = [&](float label) { return label == those.label_min || label == those.label_max; };
  if (these.distinct_labels <= 2 && has(these.label_min) && has(these.label_max)) return;
  throw Error(
      fmt::format("{}: its labels are {}, but those of the training data {} are {}; give both the same two labels",
                  test.name(), labels_of(these), training.name(), labels_of(those)));
}

train::SparsePart part_of(const SparseSettings& sparse) {
  return {sparse.test_share.value_or(sparse.test_data.empty() ? kDefaultTestShare : 0.0), false};
}

}  // namespace

SparseSetup::SparseSetup(const TrainingSettings& training, bool is_to_be_tested, Worker* worker)
    : data_(read_data(training, worker)),
      part_(part_of(training.sparse)),
      examples_(train::count_examples(data_.info(), part_)),
      batch_(training.batch != 0 ? training.batch : train::SparseTrainOptions::kBatch) {
  check_batch(training, examples_);
  train::SparseModelOptions options;
  options.factors = training.sparse.factors.value_or(options.factors);
  options.bias = training.sparse.bias;
  model_ = train::make_sparse_model(training.model, data_.info(), options);
  if (is_to_be_tested && !training.sparse.test_data.empty()) {
    test_ = read_test_data(training.sparse, data_);
    if (model_->is_classifier()) check_labels(*test_, data_);
  }
  if (part_.test_share > 0 && examples_ == data_.info().examples)
    throw Error(
        fmt::format("{}: a fraction of {} of its {} examples leaves none for testing; give a larger --test-share, or 0 "
                    "to test on the training data",
                    data_.name(), part_.test_share, examples_));
}

template <class Evaluate>
report::Metrics SparseSetup::on_test_data(Evaluate&& evaluate) const {
  if (test_) return evaluate(*test_, train::SparsePart());
  return evaluate(data_, train::SparsePart{part_.test_share, part_.test_share > 0});
}

report::Metrics SparseSetup::evaluate(std::span<const float> table) const {
  return on_test_data([&](const train::SparseData& data, const train::SparsePart& part) {
    return train::evaluate(*model_, table, data_.info().features, data, part);
  });
}

report::Metrics SparseSetup::evaluate(Table& table) const {
  return on_test_data([&](const train::SparseData& data, const train::SparsePart& part) {
    return train::evaluate(*model_, table, data, part);
  });
}

}  // namespace ps_shm::tools
