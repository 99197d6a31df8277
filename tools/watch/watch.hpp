// inspect_shm watch: a job live, on the whole terminal; plain lines where there is none.
#pragma once

#include <string>

namespace ps::watch {

// Until q is pressed, or a signal asks for it; plain lines until nobody is in the job any more. Returns the exit code.
// Throws Error: there is no such job, or it is damaged.
int watch(const std::string& job);

}  // namespace ps::watch
