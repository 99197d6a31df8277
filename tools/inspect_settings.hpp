// A job's settings as the inspector shows them: an object with a key for each.
#pragma once

#include "inspect.hpp"
#include "ps/job_config.hpp"

namespace ps::inspect {

Json settings_of(const JobConfig& config);  // what the job began with
Json live_json(const LiveSettings& live);   // what holds now of those that can change

}  // namespace ps::inspect
