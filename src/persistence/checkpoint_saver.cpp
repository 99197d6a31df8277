#include "persistence/checkpoint_saver.hpp"

#include <fmt/format.h>

#include <cmath>

namespace ps_shm::persistence {

void CheckpointSaver::begin(double seconds, std::uint64_t step, std::uint64_t saved) {
  due_.emplace(settings_.every, seconds, step);
  saved_ = saved;
}

std::optional<double> CheckpointSaver::mean_loss() const noexcept {
  const double mean = count_ == 0 ? NAN : sum_ / double(count_);
  return std::isfinite(mean) ? std::optional(mean) : std::nullopt;
}

void CheckpointSaver::written(const std::string& folder, std::uint64_t step, double seconds,
                              const std::string& begun_with) {
  settings_.say(fmt::format("checkpoint {} written in {:.2f} s", folder, seconds));
  saved_ = step;
  remove_old_checkpoints(settings_.dir, settings_.retention, folder, begun_with);
}

void CheckpointSaver::failed(const std::string& why, bool is_last) const {
  if (is_last)
    settings_.warn(
        fmt::format("checkpoint of the last state failed: {}; {}", why,
                    saved_ == 0 ? "what was trained is lost" : fmt::format("what came after step {} is lost", saved_)));
  else
    settings_.warn(fmt::format("checkpoint failed: {}; training continues", why));
}

void CheckpointSaver::report_skipped() const {
  if (skipped_ == 0) return;
  settings_.warn(fmt::format("{} of the checkpoints at every {} steps {} skipped: {} not saved in time for the next",
                             skipped_, settings_.every.steps, skipped_ == 1 ? "was" : "were",
                             skipped_ == 1 ? "the one before was" : "those before were"));
}

}  // namespace ps_shm::persistence
