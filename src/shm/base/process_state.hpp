// What /proc says of another process. None of these functions throws: a process may end while it is being read.
#pragma once

#include <cstdint>

namespace ps_shm::shm {

// The letter of the process's state, as proc(5) lists them: R, S, T, Z ...; 0 if /proc does not show the process.
char process_state(std::uint32_t pid) noexcept;

// Whether a signal or a debugger has stopped the process. False if /proc does not show it.
bool is_stopped(std::uint32_t pid) noexcept;

// Whether one of the process's threads is running or would run if it had a core, so that the process is not stopped.
// False if /proc does not show it.
bool is_runnable(std::uint32_t pid) noexcept;

}  // namespace ps_shm::shm
