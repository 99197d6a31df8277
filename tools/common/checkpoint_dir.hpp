// --checkpoint-dir: the checkpoint that a run resumes from, and the messages about new ones.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "cli/ps_options.hpp"
#include "ps_shm/checkpoint.hpp"

namespace ps_shm::tools {

// The newest complete checkpoint; `log` reports incomplete ones. None: the run starts from scratch. Throws Error
// if there are checkpoints but none is complete, or with --fresh-start if the folder is not empty.
std::optional<Checkpoint> find_beginning(const CheckpointSettings& settings,
                                         const std::function<void(const std::string&)>& log);

// If the run has already done all its steps by then, so that nothing is left to do: the message that says so.
std::optional<std::string> why_done(const Checkpoint& checkpoint, const JobConfig& job);

std::string written_line(const std::string& folder, double seconds);
std::string unwritten_line(const std::string& why);
// Of the last state; `saved` is the step of the checkpoint before, 0: there is none.
std::string lost_line(const std::string& why, std::uint64_t saved);

// Of the multiples of --checkpoint-every that passed without a checkpoint.
std::string skipped_line(std::uint64_t count, std::uint64_t every);

// The mean of the training losses reported since the previous checkpoint.
class MeanLoss {
 public:
  void add(double loss) noexcept { sum_ += loss, ++count_; }
  std::optional<double> mean() const noexcept;  // none: no loss was reported, or one was not finite
  void reset() noexcept { sum_ = 0.0, count_ = 0; }

 private:
  double sum_ = 0.0;
  std::uint64_t count_ = 0;
};

}  // namespace ps_shm::tools
