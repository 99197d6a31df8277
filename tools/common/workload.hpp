// What a job trains, as needed to start and to evaluate it: variables, examples and the quality of the model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cli/options.hpp"
#include "report/summary.hpp"
#include "train/data/dataset.hpp"
#include "train/data/loading.hpp"
#include "train/models/dense/model.hpp"

namespace ps_shm::tools {

class Workload {
 public:
  virtual ~Workload() = default;

  virtual std::span<const train::ParameterSpec> variables() const = 0;  // none with --keyed

  // The metrics of the model with these values, one array per variable. With --keyed the last worker evaluates.
  virtual report::Metrics evaluate(std::span<const std::span<const float>> values) = 0;
  virtual bool is_judged_by_training_data() const { return false; }

  // The number of epochs after the given global steps, for models that report it.
  virtual std::optional<double> epochs(std::uint64_t) const { return std::nullopt; }

  virtual std::uint64_t examples() const = 0;  // number of training examples
  virtual std::uint64_t batch() const = 0;     // examples per batch
};

// Converts copied values to what evaluate() takes.
std::vector<std::span<const float>> spans_of(const std::vector<std::vector<float>>& values);

// Loading data ends at the first signal, and tells on stderr how far it is.
train::LoadHooks load_hooks();

// Loads data and model. Throws Error, Interrupted. Requires: not count.
std::unique_ptr<Workload> load_workload(const TrainingSettings& training);

// For dense models: the training and test data. Throws Error.
train::DataSplit load_dense_data(const TrainingSettings& training);

// Throws Error if --batch exceeds the number of training examples.
void check_batch(const TrainingSettings& training, std::uint64_t examples);

// Sets the job's steps and schedule as far as they depend on the number of examples and the batch size. An epoch takes
// as many examples as there are, by all workers together; it may end within a step.
void complete_job(std::uint64_t examples, std::uint64_t batch, const TrainingSettings& training, JobConfig& job);

}  // namespace ps_shm::tools
