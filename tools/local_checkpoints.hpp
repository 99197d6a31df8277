// worker_shm --standalone --checkpoint-dir: the same files of a run without a ps.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <span>

#include "checkpoint_dir.hpp"
#include "config/interval.hpp"
#include "keep/checkpoint_folder.hpp"
#include "options.hpp"
#include "train/dense/model.hpp"
#include "train/train_log.hpp"

namespace ps::tools {

// Lets the run go on from what is there, and keeps it from then on; nothing where no folder is given.
class LocalCheckpoints {
 public:
  // Changes `config` to that of what is there, and sets `hooks`; outlives the run. Throws Error: the newest checkpoint is
  // of another model, or of the run's end; the folder cannot be made, or another process keeps checkpoints there.
  LocalCheckpoints(const WorkerSettings& settings, std::span<const train::ParameterSpec> variables, JobConfig& config,
                   train::TrainHooks& hooks);
  ~LocalCheckpoints();  // waits for the one that is being written
  LocalCheckpoints(const LocalCheckpoints&) = delete;
  LocalCheckpoints& operator=(const LocalCheckpoints&) = delete;

 private:
  void look(std::uint64_t step, double loss, bool is_last, const std::function<train::LocalState()>& copy);
  void write(train::LocalState state, std::optional<double> loss);

  const WorkerSettings& settings_;
  const JobConfig& config_;
  std::optional<Checkpoint> begun_with_;
  std::optional<keep::CheckpointDir> dir_;
  MeanLoss loss_;
  std::optional<config::Due> due_;
  std::uint64_t written_ = 0;  // the step of the last one
  std::future<void> writing_;
};

}  // namespace ps::tools
