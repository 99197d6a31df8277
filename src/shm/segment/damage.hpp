// The error for a damaged segment.
#pragma once

#include <string>

namespace ps_shm::shm {

// Throws Error (kDamaged): "/dev/shm/SEGMENT is damaged: WHAT; what to do".
[[noreturn]] void fail_damaged(const std::string& segment, const std::string& what);

}  // namespace ps_shm::shm
