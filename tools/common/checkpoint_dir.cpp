#include "common/checkpoint_dir.hpp"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "ps_shm/errors.hpp"

namespace ps_shm::tools {

std::optional<Checkpoint> find_beginning(const CheckpointSettings& settings,
                                         const std::function<void(const std::string&)>& log) {
  if (settings.dir.empty()) return std::nullopt;
  if (!settings.fresh) return Checkpoint::latest(settings.dir, log);
  std::error_code error;
  const std::filesystem::directory_iterator entry(settings.dir, error);
  if (!error && entry != std::filesystem::directory_iterator())
    throw Error(
        fmt::format("--fresh-start: {} is not empty; choose another folder, or leave --fresh-start out to resume from "
                    "its checkpoint",
                    settings.dir));
  return std::nullopt;
}

std::optional<std::string> why_done(const Checkpoint& checkpoint, const JobConfig& job) {
  if (job.steps == 0 || checkpoint.global_step() < job.steps) return std::nullopt;
  return fmt::format(
      "done: checkpoint {} is at step {}, and the run ends at --steps {}; to train on, give more steps or another "
      "--checkpoint-dir",
      checkpoint.folder(), checkpoint.global_step(), job.steps);
}

std::string written_line(const std::string& folder, double seconds) {
  return fmt::format("checkpoint {} written in {:.2f} s", folder, seconds);
}

std::string unwritten_line(const std::string& why) {
  return fmt::format("checkpoint failed: {}; training continues", why);
}

std::string lost_line(const std::string& why, std::uint64_t saved) {
  return fmt::format("checkpoint of the last state failed: {}; {}", why,
                     saved == 0 ? "what was trained is lost" : fmt::format("what came after step {} is lost", saved));
}

std::string skipped_line(std::uint64_t count, std::uint64_t every) {
  return fmt::format("{} of the checkpoints at every {} steps {} skipped: {} not saved in time for the next", count,
                     every, count == 1 ? "was" : "were", count == 1 ? "the one before was" : "those before were");
}

std::optional<double> MeanLoss::mean() const noexcept {
  const double mean = count_ == 0 ? NAN : sum_ / double(count_);
  return std::isfinite(mean) ? std::optional(mean) : std::nullopt;
}

}  // namespace ps_shm::tools
