// worker_shm --evaluate: how good a job's model is while others train it, generation by generation of its publication.
#pragma once

#include "options.hpp"

namespace ps::tools {

// Reads each generation where it lies, and keeps nobody waiting. Ends with the job, after its last generation. With
// --json it prints an object a line: the publication first, then every evaluation. Returns the exit code.
// Throws Error: the job has other variables than the model, or is dead; Timeout: there is no such publication.
int evaluate(const WorkerSettings& settings);

}  // namespace ps::tools
