// Training of sparse models by worker_shm.
#pragma once

#include "cli/options.hpp"

namespace ps_shm::tools {

// Both return the exit code. They throw Error, JobFinished, Interrupted.
int train_sparse_alone(const WorkerSettings& settings);
int train_sparse_in_job(const WorkerSettings& settings);

}  // namespace ps_shm::tools
