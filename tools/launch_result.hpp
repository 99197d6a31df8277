// What a launch comes to: where it is saved, and what an earlier launch of the name has left unsaved.
#pragma once

#include <string>

#include "options.hpp"
#include "ps/job_view.hpp"

namespace ps::tools {

// Before anything starts. Throws Error where --save's file cannot be written, and where the name's last job is dead and
// holds a result: unless it may be replaced, or somebody at the terminal says so.
void check_place_of_result(const LaunchSettings& settings);

// Writes what is there, of a run that was interrupted, too, to --save's file. Returns a line that says so. Throws Error.
std::string save_result(const JobView& job, const LaunchSettings& settings);

}  // namespace ps::tools
