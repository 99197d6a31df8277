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

}  // namespace ps::tools
