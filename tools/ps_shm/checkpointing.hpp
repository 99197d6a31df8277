// ps_shm --checkpoint-dir: writes checkpoints of a running job.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "cli/options.hpp"
#include "common/checkpoint_dir.hpp"
#include "common/repeating.hpp"
#include "config/interval.hpp"
#include "persistence/checkpoint_folder.hpp"
#include "ps_shm/job_view.hpp"

namespace ps_shm::tools {

// Writes a checkpoint whenever one is due, in its own thread, and one of the last state at its destruction. A failure
// is reported once, in one line; training and later attempts continue.
class Checkpointing {
 public:
  using LogCallback = std::function<void(const std::string& line)>;

  // `say` and `warn` are called in the thread. Requires: this process owns the folder (persistence::CheckpointDir).
  Checkpointing(std::string job, std::string group, CheckpointSettings settings, LogCallback say, LogCallback warn);
  ~Checkpointing();
  Checkpointing(const Checkpointing&) = delete;
  Checkpointing& operator=(const Checkpointing&) = delete;

  // Writes the last state. Returns false if that could not be written; `warn` has been told what is lost.
  bool finish() noexcept;

 private:
  bool look(bool is_last);
  void failed(const std::string& what, bool is_last);
  std::uint64_t save(const JobView& view, double wait_seconds);

  const std::string job_, group_;
  const CheckpointSettings settings_;
  const LogCallback say_, warn_;
  MeanLoss loss_;
  std::optional<JobView> view_;
  std::optional<config::Due> due_;
  std::uint64_t saved_ = 0;  // the step of the last checkpoint
  Repeating repeating_;      // last member: it uses all of the above
};

}  // namespace ps_shm::tools
