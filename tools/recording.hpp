// --record and --replay of launch_shm: what a record is of, and running that again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "options.hpp"
#include "record/board.hpp"
#include "record/replayer.hpp"

namespace ps::tools {

// Throws Error where the launch has no order that could be recorded; says which option is at fault.
void check_recording(const LaunchSettings& settings);

// The arguments of a launch that make the same job again: without those that say only what becomes of it.
std::vector<std::string> arguments_of_job(int argc, char** argv);
// As a record has them. Throws Error: it is none.
std::vector<std::string> recorded_arguments(const std::string& folder);
// Whether a replay takes the option beside --replay.
bool is_of_replay(const std::string& setting);

// A record that is being written: the folder with the launch's part of it.
class RecordedLaunch {
 public:
  // Throws Error: the folder has a record already, or cannot be written.
  RecordedLaunch(const std::string& folder, const std::vector<std::string>& arguments);
  void finish(std::uint64_t digest) const;  // throws Error

 private:
  void write(const std::string& digest) const;

  std::string folder_;
  std::vector<std::string> arguments_;
};

// A record that is run again.
class ReplayedLaunch {
 public:
  ReplayedLaunch(const std::string& folder, std::uint32_t workers);  // throws Error

  std::string board() const { return board_.path(); }
  std::uint32_t lives_of(std::uint32_t rank) const noexcept { return records_.lives_of(rank); }
  // Throws Error: the recorded run has come to another digest.
  void check_digest(std::uint64_t digest) const;

 private:
  std::string folder_;
  record::Records records_;
  record::Board board_;
};

}  // namespace ps::tools
