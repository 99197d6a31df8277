// The command lines of the programs that launch_shm starts, derived from these programs' tables of settings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/options.hpp"

namespace ps_shm::tools {

std::vector<std::string> ps_arguments(const PsSettings& settings);
std::vector<std::string> worker_arguments(const WorkerSettings& settings);

// The arguments for the worker of that rank. `together`: it waits for the other initial workers.
WorkerSettings worker_settings(const LaunchSettings& launch, std::uint32_t rank, bool together);

// The same for an evaluator.
WorkerSettings evaluator_settings(const LaunchSettings& launch);

// The environment of a program that runs as a worker: RANK, LOCAL_RANK, WORLD_SIZE, PS_SHM_JOB.
// Of python -m ps_shm.bridge: its arguments behind the module. Throws Error if --bridge is no place.
std::vector<std::string> bridge_arguments(const LaunchSettings& launch);

std::vector<std::string> program_variables(const LaunchSettings& launch, std::uint32_t rank);

}  // namespace ps_shm::tools
