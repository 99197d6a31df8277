// worker_shm --workers-per-process: several workers as threads of one process.
#pragma once

#include <functional>
#include <string>

#include "cli/options.hpp"

namespace ps_shm::tools {

// Reports a failure, and returns its exit code.
using OnFailure = std::function<int(int code, const std::string& message)>;

// Calls `run` in a thread for each worker, with that worker's settings; it returns the worker's exit code. If one fails,
// its message is the process's, and the others leave. Returns the exit code of the process. Throws Error if a thread
// cannot be started, and what `run` throws.
int run_several(const WorkerSettings& settings,
                const std::function<int(const WorkerSettings& one, const OnFailure& fail)>& run);

}  // namespace ps_shm::tools
