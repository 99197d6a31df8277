#include "checkpoint_dir.hpp"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <vector>

#include "ps/errors.hpp"

namespace ps::tools {

std::optional<Checkpoint> find_beginning(const CheckpointSettings& settings,
                                         const std::function<void(const std::string&)>& notice) {
  if (settings.dir.empty()) return std::nullopt;
  if (!settings.fresh) return Checkpoint::latest(settings.dir, notice);
  std::error_code error;
  const std::filesystem::directory_iterator entry(settings.dir, error);
  if (!error && entry != std::filesystem::directory_iterator())
    throw Error(
        fmt::format("--fresh: {} is not empty; choose another folder, or leave --fresh out to go on with what "
                    "is there",
                    settings.dir));
  return std::nullopt;
}

std::vector<VariableSpec> variables_of(std::span<const train::ParameterSpec> parameters) {
  std::vector<VariableSpec> all;
  for (const train::ParameterSpec& one : parameters)
    all.push_back({.name = one.name, .shape = {one.shape.begin(), one.shape.end()}});
  return all;
}

void require_steps_left(const Checkpoint& checkpoint, const JobConfig& job) {
  if (job.steps == 0 || checkpoint.global_step() < job.steps) return;
  throw Error(
      fmt::format("checkpoint {} is at step {}, and the run ends at --steps {}: give more steps, or another "
                  "--checkpoint-dir",
                  checkpoint.folder(), checkpoint.global_step(), job.steps));
}

std::string written_line(const std::string& folder, double seconds) {
  return fmt::format("checkpoint {} written in {:.2f} s", folder, seconds);
}

std::string unwritten_line(const std::exception& error) {
  return fmt::format("no checkpoint: {}; training goes on", error.what());
}

std::optional<double> MeanLoss::take() noexcept {
  const double mean = count_ == 0 ? NAN : sum_ / double(count_);
  sum_ = 0.0, count_ = 0;
  return std::isfinite(mean) ? std::optional(mean) : std::nullopt;
}

}  // namespace ps::tools
