// Setup for sparse models: data, model and test.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "cli/options.hpp"
#include "ps_shm/worker.hpp"
#include "report/summary.hpp"
#include "train/data/sparse/sparse_data.hpp"
#include "train/data/sparse/sparse_stream.hpp"
#include "train/models/sparse/sparse_model.hpp"

namespace ps_shm::tools {

class SparseSetup {
 public:
  // Reads the data, and test data only if it is needed. With --share-data the data is shared by the workers of the
  // worker's job; without a worker it is read for this process. Throws Error, Interrupted.
  SparseSetup(const TrainingSettings& training, bool is_to_be_tested, Worker* worker = nullptr);

  train::SparseModel& model() const { return *model_; }
  const train::SparseData& data() const { return data_; }
  const train::SparsePart& part() const { return part_; }  // the part of the data for training
  std::uint64_t examples() const { return examples_; }     // number of examples in that part
  std::uint64_t batch() const { return batch_; }

  // Requires: test data was loaded.
  report::Metrics evaluate(std::span<const float> table) const;
  report::Metrics evaluate(Table& table) const;
  bool is_judged_by_training_data() const { return !test_ && part_.test_share == 0; }

 private:
  // Calls evaluate(data, part) with the test data.
  template <class Evaluate>
  report::Metrics on_test_data(Evaluate&& evaluate) const;

  train::SparseData data_;
  std::optional<train::SparseData> test_;
  train::SparsePart part_;
  std::unique_ptr<train::SparseModel> model_;
  std::uint64_t examples_, batch_;
};

}  // namespace ps_shm::tools
