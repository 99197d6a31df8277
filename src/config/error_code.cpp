#include "config/error_code.hpp"

#include <cerrno>


namespace ps_shm {

const char* to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case ErrorCode::kInvalidState:
      return "INVALID_STATE";
    case ErrorCode::kNotFound:
      return "NOT_FOUND";
    case ErrorCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case ErrorCode::kRankTaken:
      return "RANK_TAKEN";
    case ErrorCode::kExhausted:
      return "EXHAUSTED";
    case ErrorCode::kNoSpace:
      return "NO_SPACE";
    case ErrorCode::kIncompatible:
      return "INCOMPATIBLE";
    case ErrorCode::kDamaged:
      return "DAMAGED";
    case ErrorCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case ErrorCode::kUnavailable:
      return "UNAVAILABLE";
    case ErrorCode::kTimedOut:
      return "TIMED_OUT";
    case ErrorCode::kSystem:
      return "SYSTEM";
    case ErrorCode::kDevice:
      return "DEVICE";
    case ErrorCode::kNotFinite:
      return "NOT_FINITE";
    case ErrorCode::kInterrupted:
      return "INTERRUPTED";
    case ErrorCode::kJobFinished:
      return "JOB_FINISHED";
    case ErrorCode::kPublisherGone:
      return "PUBLISHER_GONE";
  }
  return "unknown";
}

ErrorCode config::code_of(int error) noexcept {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return ErrorCode::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return ErrorCode::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
      return ErrorCode::kNoSpace;
    default:
      return ErrorCode::kSystem;
  }
}

}  // namespace ps_shm
