// ps_shm --checkpoint-dir: keeps a job while it goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "checkpoint_dir.hpp"
#include "config/interval.hpp"
#include "keep/checkpoint_folder.hpp"
#include "options.hpp"
#include "ps/job_view.hpp"
#include "repeating.hpp"

namespace ps::tools {

// Writes a checkpoint of the job when it is due, in a thread of its own, and one of its last state when it goes. What
// cannot be written is said once, in a line; training goes on, and so do later attempts.
class Checkpointing {
 public:
  using Notice = std::function<void(const std::string& line)>;

  // `say` and `warn` are called in the thread. Requires: this process has the folder (keep::CheckpointDir).
  Checkpointing(std::string job, std::string group, CheckpointSettings settings, Notice say, Notice warn);
  ~Checkpointing();
  Checkpointing(const Checkpointing&) = delete;
  Checkpointing& operator=(const Checkpointing&) = delete;

 private:
  void look(bool is_last);
  std::uint64_t save(const JobView& view);

  const std::string job_, group_;
  const CheckpointSettings settings_;
  const Notice say_, warn_;
  MeanLoss loss_;
  std::optional<JobView> view_;
  std::optional<config::Due> due_;
  std::uint64_t saved_ = 0;  // the step of the last one
  std::string said_;
  Repeating repeating_;  // last: it uses all of the above
};

}  // namespace ps::tools
