// inspect_shm watch: a live view of a job on the whole terminal; plain lines if there is no terminal.
#pragma once

#include <string>

namespace ps_shm::watch {

// Runs until q is pressed or a signal arrives; plain lines until no process of the job is alive. Returns the exit code.
// Throws Error if there is no such job, or if it is damaged.
int watch(const std::string& job);

}  // namespace ps_shm::watch
