// The result of a launch: where it is saved, and the unsaved result of an earlier launch of the same name.
#pragma once

#include <string>

#include "cli/options.hpp"
#include "ps_shm/job_view.hpp"

namespace ps_shm::tools {

// Called before anything starts. Throws Error if the file of --save or --report, or the folder of checkpoints or
// summaries, cannot be written, or if the last job of this name is dead and holds a result, unless it may be replaced or
// the user at the terminal agrees.
void check_place_of_result(const LaunchSettings& settings);

// Writes the parameters to the file of --save, also after an interruption. Returns a message about it. Throws Error.
std::string save_result(const JobView& job, const LaunchSettings& settings);

}  // namespace ps_shm::tools
