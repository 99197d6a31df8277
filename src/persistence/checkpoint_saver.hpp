// What is the same for everybody who saves checkpoints of a run: when one is due, the mean loss in it, the messages, and
// which older ones are removed. How a checkpoint is written differs: of a job, by the ps or a hook, or of a process that
// trains without a ps.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "config/interval.hpp"
#include "persistence/checkpoint_folder.hpp"

namespace ps_shm::persistence {

struct SaverSettings {
  std::string dir;
  config::Interval every;
  Retention retention;
  std::function<void(const std::string&)> say, warn;
};

// Not thread-safe; but one thread may call written() and failed() while another adds losses and asks what is due.
class CheckpointSaver {
 public:
  explicit CheckpointSaver(SaverSettings settings) : settings_(std::move(settings)) {}

  // Checkpoints are due from this moment of a monotonic clock and this step on. `saved`: the step of the last checkpoint;
  // 0: there is none. To be called before due() and saved().
  void begin(double seconds, std::uint64_t step, std::uint64_t saved);
  bool has_begun() const noexcept { return due_.has_value(); }

  config::Due& due() noexcept { return *due_; }
  std::uint64_t saved() const noexcept { return saved_; }

  // The mean of the training losses reported since the previous checkpoint. None: no loss was reported, or one was not
  // finite.
  void add_loss(double loss) noexcept { sum_ += loss, ++count_; }
  std::optional<double> mean_loss() const noexcept;
  void reset_losses() noexcept { sum_ = 0.0, count_ = 0; }

  // The checkpoint of this step was written in so many seconds: says so, and removes older ones, but not `begun_with`.
  // Throws Error if the folder cannot be read.
  void written(const std::string& folder, std::uint64_t step, double seconds, const std::string& begun_with);
  // No checkpoint was written; `is_last`: it was to be of the run's last state.
  void failed(const std::string& why, bool is_last = false) const;

  // Multiples of the number of steps that passed without a checkpoint are counted, and reported at the end.
  void skip(std::uint64_t count) noexcept { skipped_ += count; }
  void report_skipped() const;

 private:
  const SaverSettings settings_;
  std::optional<config::Due> due_;
  std::uint64_t saved_ = 0, skipped_ = 0;
  double sum_ = 0.0;
  std::uint64_t count_ = 0;
};

}  // namespace ps_shm::persistence
