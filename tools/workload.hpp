// What a job trains, as far as those must know it who start it and judge it: variables, examples, and how good it is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "options.hpp"
#include "report/summary.hpp"
#include "train/dense/model.hpp"

namespace ps::tools {

class Workload {
 public:
  virtual ~Workload() = default;

  virtual std::span<const train::ParameterSpec> variables() const = 0;

  // How good the model is with these values, variable by variable.
  virtual report::Metrics evaluate(std::span<const std::span<const float>> values) = 0;
  virtual bool is_judged_by_training_data() const { return false; }

  // How often the examples have been gone through after so many global steps, where that is told.
  virtual std::optional<double> epochs(std::uint64_t) const { return std::nullopt; }

  virtual std::uint64_t examples() const = 0;  // that it trains on
  virtual std::uint64_t batch() const = 0;     // of them
};

// What evaluate() takes, of values that are copies.
std::vector<std::span<const float>> spans_of(const std::vector<std::vector<float>>& values);

// Loads data and model. Throws Error, Interrupted. Requires: not count.
std::unique_ptr<Workload> load_workload(const TrainingSettings& training);

// The job's steps and schedule, where they depend on how many examples there are, and in a batch.
void complete_job(std::uint64_t examples, std::uint64_t batch, const TrainingSettings& training, JobConfig& job);

}  // namespace ps::tools
