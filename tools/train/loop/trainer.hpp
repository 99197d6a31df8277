// The training loop of a worker: pull, gradient, push, step; and the same in one process without a ps.
//
// Both run on the calling thread. The computation is done by an engine (engine.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/job_config.hpp"
#include "ps_shm/worker.hpp"
#include "train/data/dataset.hpp"
#include "train/log/straggler.hpp"
#include "train/log/train_log.hpp"
#include "train/loop/gpu_place.hpp"
#include "train/models/dense/model.hpp"

namespace ps_shm::train {

// Values of all parameters of a model, each starting on a cache line of its own.
class ParameterArrays {
 public:
  explicit ParameterArrays(std::span<const ParameterSpec> specs);
  explicit ParameterArrays(std::span<const std::span<float>> arrays);  // in memory that outlives it

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

// Pairs each with its parameter's name.
std::vector<NamedValues> named(std::span<const ParameterSpec> specs, std::span<const std::span<const float>> values);
std::vector<NamedValues> named(std::span<const ParameterSpec> specs, ParameterArrays& values);

struct TrainOptions : TrainHooks {
  std::size_t batch = 0;              // 0: default_batch
  std::optional<std::uint64_t> seed;  // of the data order; none: the job's, which always determines the initial values
  Delay delay;                        // simulates a straggler: between gradient and push
  DType dtype = DType::kFloat32;      // of the variables; another one only with a ps
  std::uint64_t push_every = 1;       // local SGD: number of local steps before the difference is pushed
  std::optional<float> local_lr;  // for local steps; none: the job's if its rule is add, otherwise 0.1
  std::optional<GpuPlace> gpu;               // none: the CPU
};

struct TrainResult : TrainTotals {
  explicit TrainResult(std::span<const ParameterSpec> specs) : parameters(specs) {}

  std::optional<GpuReport> gpu;
  ParameterArrays parameters;               // as after the last step
  std::optional<ParameterArrays> averages;  // if the optimizer keeps them
};

// Trains as a worker of its job, until the job is finished or a stop is requested. The variables are the model's.
// Throws Error if the job has different variables of these names. In sync mode it waits for peers like Worker::step.
TrainResult train(Worker& worker, Model& model, const Dataset& data, const TrainOptions& options);

// Trains standalone for config.steps steps, with the same bits as a sync job of one worker.
TrainResult train_alone(const JobConfig& config, Model& model, const Dataset& data, const TrainOptions& options);

// Equal to JobView::digest of a job with these variables.
std::uint64_t digest(const Model& model, ParameterArrays& parameters);

std::size_t default_batch(const Dataset& data);
std::uint64_t default_steps(const std::string& source);

}  // namespace ps_shm::train
