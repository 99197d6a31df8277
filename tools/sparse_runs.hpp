// Training of sparse models by worker_shm, and what it and launch_shm need for that: the data, the model, the test.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "options.hpp"
#include "ps/worker.hpp"
#include "report/summary.hpp"
#include "train/sparse/sparse_data.hpp"
#include "train/sparse/sparse_model.hpp"
#include "train/sparse/sparse_stream.hpp"

namespace ps::tools {

class SparseSetup {
 public:
  // Reads the data, and test data only where it is to be tested. With --share-data the data is what the worker's job
  // shares; where there is no worker it is read for this process. Throws Error, Interrupted.
  SparseSetup(const TrainingSettings& training, bool is_to_be_tested, Worker* worker = nullptr);

  train::SparseModel& model() const { return *model_; }
  const train::SparseData& data() const { return data_; }
  const train::SparsePart& part() const { return part_; }  // of the data: what is trained on
  std::uint64_t examples() const { return examples_; }     // in it
  std::uint64_t batch() const { return batch_; }

  // Requires: it is to be tested.
  report::Metrics evaluate(std::span<const float> table) const;
  bool is_judged_by_training_data() const { return !test_ && part_.test_share == 0; }

 private:
  train::SparseData data_;
  std::optional<train::SparseData> test_;
  train::SparsePart part_;
  std::unique_ptr<train::SparseModel> model_;
  std::uint64_t examples_, batch_;
};

// Both return the exit code. They throw Error, JobFinished, Interrupted.
int train_sparse_alone(const WorkerSettings& settings);
int train_sparse_in_job(const WorkerSettings& settings);

}  // namespace ps::tools
