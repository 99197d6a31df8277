// --record and --replay of launch_shm: the contents of a recording, and running it again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.hpp"
#include "record/coordinator.hpp"
#include "record/replayer.hpp"

namespace ps_shm::tools {

// Throws Error, which names the option at fault, if the launch has no order that could be recorded.
void check_recording(const LaunchSettings& settings);

// The arguments of a launch without those that affect only its output: these create the same job again.
std::vector<std::string> arguments_of_job(int argc, char** argv);
// The arguments stored in a recording. Throws Error if the folder has no valid one.
std::vector<std::string> recorded_arguments(const std::string& folder);
// Whether the option may be given together with --replay.
bool is_of_replay(const std::string& setting);

// A recording that is being written: the folder, with the launcher's part of it.
class RecordedLaunch {
 public:
  // Throws Error if the folder already has a recording, or cannot be written.
  RecordedLaunch(const std::string& folder, const std::vector<std::string>& arguments);
  void finish(std::uint64_t digest) const;  // throws Error

 private:
  void write(const std::string& digest) const;

  std::string folder_;
  std::vector<std::string> arguments_;
};

// A recording that is replayed.
class ReplayedLaunch {
 public:
  ReplayedLaunch(const std::string& folder, std::uint32_t workers);  // throws Error

  std::string coordinator() const { return coordinator_.path(); }
  std::uint32_t lives_of(std::uint32_t rank) const noexcept { return records_.lives_of(rank); }
  // Throws Error if the digest differs from that of the recorded run; otherwise returns a message.
  std::string check_digest(std::uint64_t digest) const;

 private:
  std::string folder_;
  record::Records records_;
  record::ReplayCoordinator coordinator_;
};

}  // namespace ps_shm::tools
