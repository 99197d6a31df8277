// The steps of local SGD between two pushes: a worker trains its own copy and pushes the difference. (Stich, Local SGD
// Converges Fast and Communicates Little, 2019; with an outer momentum: Wang et al., SlowMo, 2020.)
#pragma once

#include <cstdint>

#include "ps/worker.hpp"
#include "train/trainer.hpp"

namespace ps::train {

// The rate of a local step, as it is now.
float local_rate(const Worker& worker, const TrainOptions& options, std::uint64_t global_step);

// What the difference (end minus start) is multiplied by before it is pushed: for rule `add` one, in sync mode this worker's share of it,
// so that the sum is a mean; for an outer optimizer -1, since its gradient is start minus end.
float pushed_factor(const JobConfig& config);

class LocalSteps {
 public:
  LocalSteps(const Worker& worker, const Model& model, const TrainOptions& options);

  // From these values on. Requires: the arrays are the model's, here and below.
  void begin(ParameterArrays& parameters);

  // One step of plain SGD with the job's schedule, L2, weight decay and clip_value.
  void step(ParameterArrays& parameters, ParameterArrays& gradients, std::uint64_t global_step);

  // What is pushed, into `out`: the way gone, times pushed_factor.
  void end(ParameterArrays& parameters, ParameterArrays& out);

 private:
  const Worker& worker_;
  const Model& model_;
  const TrainOptions& options_;
  ParameterArrays start_, updated_;
};

}  // namespace ps::train
