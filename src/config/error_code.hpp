// Maps errors of the operating system to error codes.
#pragma once

#include "ps_shm/errors.hpp"

namespace ps_shm::config {

// For errno, or the value of a std::error_code: kNotFound, kPermissionDenied, kNoSpace, or else kSystem.
ErrorCode code_of(int error) noexcept;

}  // namespace ps_shm::config
