// The training loop of a worker: pull, gradient, push, step; and the same in one process with no ps.
//
// Both run on the calling thread. Where the worker computes is an engine's affair (engine.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ps/job_config.hpp"
#include "ps/worker.hpp"
#include "train/data/dataset.hpp"
#include "train/dense/model.hpp"
#include "train/gpu/gpu_place.hpp"
#include "train/straggler.hpp"
#include "train/train_log.hpp"

namespace ps::train {

// Values of all parameters of a model, each on cache lines of its own.
class ParameterArrays {
 public:
  explicit ParameterArrays(std::span<const ParameterSpec> specs);
  explicit ParameterArrays(std::span<const std::span<float>> rooms);  // in memory of somebody who outlives it

  std::size_t size() const { return arrays_.size(); }
  std::span<float> operator[](std::size_t i) { return {arrays_[i], counts_[i]}; }
  std::span<float* const> pointers() { return arrays_; }
  std::span<const float* const> values() const { return {arrays_.data(), arrays_.size()}; }

 private:
  struct Free {
    void operator()(float* memory) const;
  };
  std::unique_ptr<float, Free> memory_;
  std::vector<float*> arrays_;
  std::vector<std::size_t> counts_;
};

// Each with its parameter's name.
std::vector<NamedValues> named(std::span<const ParameterSpec> specs, std::span<const std::span<const float>> values);
std::vector<NamedValues> named(std::span<const ParameterSpec> specs, ParameterArrays& values);

struct TrainOptions : TrainHooks {
  std::size_t batch = 0;              // 0: default_batch
  std::optional<std::uint64_t> seed;  // of the data order; none: the job's, which gives the initial values in any case
  Delay delay;                        // between gradient and push: makes a straggler
  std::uint64_t push_every = 1;  // local SGD: so many steps on the worker's own copy, then their difference is pushed
  std::optional<float> local_learning_rate;  // of those; none: the job's where its rule is add, else 0.1
  std::optional<GpuPlace> gpu;               // to compute on; none: on the processor
};

struct TrainResult : TrainTotals {
  explicit TrainResult(std::span<const ParameterSpec> specs) : parameters(specs) {}

  std::optional<GpuReport> gpu;
  ParameterArrays parameters;               // as they were after the last step
  std::optional<ParameterArrays> averages;  // where the optimizer keeps them
};

// Trains as a worker of its job, until that is finished or a stop is requested. The variables are the model's.
// Throws Error where the job has other variables of these names. In sync mode it waits for peers as Worker::step does.
TrainResult train(Worker& worker, Model& model, const Dataset& data, const TrainOptions& options);

// Trains alone for config.steps steps: the same bits as a sync job of one worker.
TrainResult train_alone(const JobConfig& config, Model& model, const Dataset& data, const TrainOptions& options);

// As JobView::digest of a job with these variables.
std::uint64_t digest(const Model& model, ParameterArrays& parameters);

std::size_t default_batch(const Dataset& data);
std::uint64_t default_steps(const std::string& source);

}  // namespace ps::train
