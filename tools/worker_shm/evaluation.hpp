// worker_shm --evaluate: evaluates the model of a running job, generation by generation of its publication.
#pragma once

#include "cli/options.hpp"

namespace ps_shm::tools {

// Reads each generation in place, without blocking anyone. Ends with the job, after its last generation. With
// --json it prints one object per line: first the publication, then each evaluation. Returns the exit code.
// Throws Error if the job has other variables than the model, or is dead; Timeout if there is no such publication.
int evaluate(const WorkerSettings& settings);

}  // namespace ps_shm::tools
