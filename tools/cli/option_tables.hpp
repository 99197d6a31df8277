// The tables of the programs' settings beyond those of a job (config/job_settings.hpp), and of all settings of each
// program.
#pragma once

#include "cli/options.hpp"
#include "config/setting.hpp"

namespace ps_shm::tools {

// Training settings, taken by worker_shm and launch_shm.
const config::Settings<TrainingSettings>& training_settings();
const config::Settings<SparseSettings>& sparse_settings();  // the part of them for sparse models

const config::Settings<PsSettings>& ps_options();
const config::Settings<WorkerSettings>& worker_options();
const config::Settings<LaunchSettings>& launch_options();

}  // namespace ps_shm::tools
