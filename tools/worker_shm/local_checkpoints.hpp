// worker_shm --standalone --checkpoint-dir: the same files for a run without a ps.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <span>

#include "cli/options.hpp"
#include "persistence/checkpoint_folder.hpp"
#include "persistence/checkpoint_saver.hpp"
#include "train/log/train_log.hpp"
#include "train/models/dense/model.hpp"

namespace ps_shm::tools {

// Resumes the run from an existing checkpoint and writes new ones; does nothing if no folder is given.
class LocalCheckpoints {
 public:
  // Changes `config` to that of the checkpoint, and sets `hooks`; must outlive the run. Throws Error if the newest
  // checkpoint is of another model, if the folder cannot be made, or if another process owns it.
  LocalCheckpoints(const WorkerSettings& settings, std::span<const train::ParameterSpec> variables, JobConfig& config,
                   train::TrainHooks& hooks);
  ~LocalCheckpoints();  // waits for the checkpoint that is being written
  LocalCheckpoints(const LocalCheckpoints&) = delete;
  LocalCheckpoints& operator=(const LocalCheckpoints&) = delete;

  // Whether the run's last state could not be written, of which a line on stderr has told what is lost.
  bool has_lost_last() const noexcept { return has_lost_last_; }

 private:
  void look(std::uint64_t step, double loss, bool is_last, const std::function<train::LocalState()>& copy);
  void write(train::LocalState state, std::optional<double> loss, bool is_last);
  void wait();

  const WorkerSettings& settings_;
  const JobConfig& config_;
  std::optional<Checkpoint> begun_with_;
  std::optional<persistence::CheckpointDir> dir_;
  persistence::CheckpointSaver saver_;
  std::optional<std::uint64_t> skipped_at_;  // the last step that came while one was being written
  std::future<void> writing_;
  bool has_lost_last_ = false;
};

}  // namespace ps_shm::tools
