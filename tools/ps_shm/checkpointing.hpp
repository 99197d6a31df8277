// ps_shm --checkpoint-dir: writes checkpoints of a running job.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "cli/ps_options.hpp"
#include "common/repeating.hpp"
#include "persistence/checkpoint_saver.hpp"
#include "ps_shm/job_view.hpp"

namespace ps_shm::tools {

// Writes a checkpoint whenever one is due, in its own thread, and one of the last state at its destruction. A failure
// is reported once, in one line; training and later attempts continue. In mode sync a checkpoint that is due at a step
// is of exactly that step: it is ordered shortly before. Those that are missed are counted, and reported at the end.
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
  void note_losses(double now, std::uint64_t step);
  bool has_pushed() const;
  bool is_near(double now, std::uint64_t step);
  bool look_ahead(double now, std::uint64_t step);
  // Of the present state, or of that before `at_step`, for which it waits: throws Interrupted after some time.
  void save(WaitLimit wait, std::uint64_t at_step);

  const std::string job_, group_;
  const CheckpointSettings settings_;
  persistence::CheckpointSaver saver_;
  std::optional<JobView> view_;
  std::uint64_t first_step_ = 0, last_step_ = 0;  // 0: there is no last one
  bool is_exact_ = false;                         // mode sync, with a number of steps
  double next_losses_ = 0.0;                      // when they are read again
  double next_order_ = 0.0;                       // no order before this time
  // The highest speed so far, and the beginning of the measurement under way.
  double steps_per_second_ = 0.0, measured_at_ = 0.0;
  std::uint64_t measured_step_ = 0;
  Repeating repeating_;  // last member: it uses all of the above
};

}  // namespace ps_shm::tools
