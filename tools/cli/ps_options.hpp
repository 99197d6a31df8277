// The command line of ps_shm, and of it what other programs have, too. What only programs that train have is in
// options.hpp, so that ps_shm includes nothing of what trains.
//
// If an option such as --lr-schedule is not given, PS_SHM_LR_SCHEDULE is read; an empty variable counts as not set.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/interval.hpp"
#include "ps_shm/job_config.hpp"

namespace ps_shm::tools {

// What a ps publishes.
struct PublishSettings {
  std::string name;  // of the publication; empty: nothing is published
  config::Interval every = {.steps = 100};
  bool averages = false;  // publish the moving averages of variables that have them
  bool partial = false;   // publish states with a part of an unfinished push, too

  bool operator==(const PublishSettings&) const = default;
};

// Where and when checkpoints are written.
struct CheckpointSettings {
  std::string dir;  // empty: no checkpoints
  config::Interval every{.seconds = 600};
  std::uint64_t keep = 5;  // number of newest checkpoints to keep
  bool keep_best = false;
  std::uint64_t max_file_bytes = 5'000'000'000;
  bool fresh = false;

  bool operator==(const CheckpointSettings&) const = default;
};

// Summaries for TensorBoard.
struct SummarySettings {
  std::string dir;  // empty: no summaries
  config::Interval every = {.seconds = 10};

  bool operator==(const SummarySettings&) const = default;
};

struct PsSettings {
  JobConfig job;
  CheckpointSettings checkpoint;
  PublishSettings publish;
  SummarySettings summary;
  std::optional<std::uint32_t> task;  // one of job.ps_tasks; none: all of them in this process
  WaitLimit wait_job = Seconds(60);   // how long a task other than 0 waits for task 0
  bool keep_segments = false;
  bool adopt = false;

  bool operator==(const PsSettings&) const = default;
};

// Fills `settings`, or returns the exit code with which the program ends now: 0 after --help, 2 after one line on stderr
// about wrong usage.
std::optional<int> parse(int argc, char** argv, PsSettings& settings);

inline constexpr int kFailed = 1, kWrongUsage = 2, kInterrupted = 130;

}  // namespace ps_shm::tools
