// The command lines of the programs that launch_shm starts: what the programs' own tables of settings say of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options.hpp"

namespace ps::tools {

std::vector<std::string> ps_arguments(const PsSettings& settings);
std::vector<std::string> worker_arguments(const WorkerSettings& settings);

// What the launcher means for the worker of that rank. `together`: it waits for the others of the job's start.
WorkerSettings worker_settings(const LaunchSettings& launch, std::uint32_t rank, bool together);

// The same for an evaluator.
WorkerSettings evaluator_settings(const LaunchSettings& launch);

// What a program that is a worker finds in its environment: RANK, LOCAL_RANK, WORLD_SIZE, PS_JOB.
std::vector<std::string> program_variables(const LaunchSettings& launch, std::uint32_t rank);

}  // namespace ps::tools
