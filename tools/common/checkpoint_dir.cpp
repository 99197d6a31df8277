#include "common/checkpoint_dir.hpp"

#include <fmt/format.h>

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

}  // namespace ps_shm::tools
