// The tables of settings that the programs have beyond a job's own (config/job_settings.hpp), and all that each program
// takes.
#pragma once

#include "config/setting.hpp"
#include "options.hpp"

namespace ps::tools {

// What workers do; both programs that know it take all of them.
const config::Settings<TrainingSettings>& training_settings();
const config::Settings<SparseSettings>& sparse_settings();  // of them, those of sparse models

const config::Settings<PsSettings>& ps_options();
const config::Settings<WorkerSettings>& worker_options();
const config::Settings<LaunchSettings>& launch_options();

}  // namespace ps::tools
