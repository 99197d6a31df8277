// The steps of a sparse model on a GPU: the interface of the training loop to train/gpu. They replace those of
// example_steps.hpp, which compute on the CPU.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "ps_shm/table.hpp"
#include "ps_shm/worker.hpp"
#include "train/data/sparse/sparse_stream.hpp"
#include "train/log/train_log.hpp"
#include "train/loop/gpu_place.hpp"
#include "train/loop/row_decay.hpp"
#include "train/models/sparse/sparse_model.hpp"

namespace ps_shm::train {

class GpuExamples {
 public:
  virtual ~GpuExamples() = default;

  // One step: the batch's examples, `combine` at a time, each time with the rows as they are then. Returns their mean
  // loss. If `phases` is given, adds to it the time of parts of the batch; measuring costs time itself.
  virtual double run(PhaseSeconds* phases) = 0;

  // What has been done so far.
  virtual GpuReport report() const = 0;
};

// All outlive what is made of them; batch and combine are above 0.
struct GpuExamplesParts {
  Worker& worker;
  SparseModel& model;
  SparseStream& examples;
  const RowDecay& decay;
  hooks::NanGuard& guard;
  std::size_t batch, combine;
  const GpuPlace& place;
  std::function<void(const std::string&)> warn;  // of the transfers
};

// With the rows in a variable, or in a table by key. Throws Error if the GPU cannot be used, or has too little memory.
std::unique_ptr<GpuExamples> make_gpu_examples(const GpuExamplesParts& parts, const Variable& rows);
std::unique_ptr<GpuExamples> make_gpu_examples(const GpuExamplesParts& parts, const Table& rows);

}  // namespace ps_shm::train
