// Which options cannot be combined, for all programs. Each check throws Error, which names the option and a way out.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>

#include "cli/command_line.hpp"
#include "cli/options.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::tools {

// For an option with values of single ranks.
template <class Value>
void check_ranks(const char* option, const std::map<std::uint32_t, Value>& of_rank, const JobConfig& job) {
  const std::uint32_t most = std::max(job.workers, job.elastic_max);
  if (!of_rank.empty() && of_rank.rbegin()->first >= most)
    throw Error(fmt::format("{}: there is no worker {}; ranks are 0 to {}", option, of_rank.rbegin()->first, most - 1));
}

// A ps may wait for workers that are started by hand, but a launcher starts all of them.
void check_quorum(const JobConfig& job);

// The process's workers have ranks that a job may have.
void check_last_rank(const WorkerSettings& settings);

// Two results in one file would overwrite each other. Devices such as /dev/null may be named several times.
void check_results(const LaunchSettings& settings);

// A setting of other update rules.
void check_hyper_parameters(const CommandLine& line, const Optimizer& optimizer);

// An update rule that sums what is pushed has no use for the other settings of an optimizer. Local steps have for some.
void check_sum(const CommandLine& line, const TrainingSettings& training, const Optimizer& optimizer);

// A worker gets the job's settings from its ps, except those that identify the job. Environment variables are ignored,
// because the ps and the workers may share their environment.
void check_job_settings(const CommandLine& line);

// What a process that trains without a ps does not do.
void check_standalone(const CommandLine& line);

// An evaluator does not join a job: it reads what the ps publishes.
void check_evaluation(const CommandLine& line, const WorkerSettings& settings);

// What belongs to --publish, --checkpoint-dir and --summary-dir, and to --on-nan restore.
void check_publish(const PsSettings& settings);
void check_checkpoint(const CheckpointSettings& settings);
void check_summary(const SummarySettings& settings);
void check_on_nan(const TrainingSettings& training, const CheckpointSettings& checkpoint);

// bfloat16 needs variables of a ps, which workers push from the CPU.
void check_dtype(const TrainingSettings& training, const device::DeviceChoice& device);

// The workers of a process have one command line, and they die and leave together.
void check_workers_per_process(const LaunchSettings& settings);

}  // namespace ps_shm::tools
