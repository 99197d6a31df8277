// The steps of local SGD between two pushes: a worker trains a local copy and pushes the difference. (Stich, Local SGD
// Converges Fast and Communicates Little, 2019; with an outer momentum: Wang et al., SlowMo, 2020.)
#pragma once

#include <cstdint>
#include <string>

#include "ps_shm/worker.hpp"
#include "train/loop/trainer.hpp"

namespace ps_shm::train {

// The current rate of a local step.
float local_rate(const Worker& worker, const TrainOptions& options, std::uint64_t global_step);

// The factor of the difference (end minus start) that is pushed: one for rule `add`, in sync mode this worker's part,
// so that the sum is a mean; for an outer optimizer -1, since its gradient is start minus end. Throws Error for `add`
// with a quorum, of which nobody knows how many differences it adds up.
float pushed_factor(const Worker& worker);

// A warning about an outer momentum that overshoots in a mode whose pushes apply at once, or nothing. The differences of n
// workers from about the same point add up there, and momentum m applies each of them 1 / (1 - m) times. If they lead
// right to the best point, their sum leads beyond it, and it takes rate n / (1 - m) < 2 to come closer in spite of that.
std::string warn_of_overshooting(const JobConfig& config, float lr);

class LocalSteps {
 public:
  LocalSteps(const Worker& worker, const Model& model, const TrainOptions& options);

  // Starts from these values. Requires, here and below: the arrays are those of the model.
  void begin(ParameterArrays& parameters);

  // One step of plain SGD with the job's schedule, L2, weight decay and clip_value.
  void step(ParameterArrays& parameters, ParameterArrays& gradients, std::uint64_t global_step);

  // Writes what is pushed to `out`: the difference, times pushed_factor.
  void end(ParameterArrays& parameters, ParameterArrays& out);

 private:
  const Worker& worker_;
  const Model& model_;
  const TrainOptions& options_;
  ParameterArrays start_, updated_;
};

}  // namespace ps_shm::train
