// The command lines of the programs that launch_shm starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options.hpp"

namespace ps::tools {

std::vector<std::string> ps_arguments(const PsSettings& settings);

// `together`: it waits for the others of the job's start.
std::vector<std::string> worker_arguments(const LaunchSettings& settings, std::uint32_t rank, bool together);

}  // namespace ps::tools
