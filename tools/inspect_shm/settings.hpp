// A job's settings as a JSON object with one key per setting.
#pragma once

#include "inspect_shm/inspect.hpp"
#include "ps_shm/job_config.hpp"

namespace ps_shm::inspect {

Json settings_of(const JobConfig& config);  // at the job's start
Json live_json(const LiveSettings& live);   // current values of the runtime settings

}  // namespace ps_shm::inspect
