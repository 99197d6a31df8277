/// @file
/// The exceptions of the library. The text of each tells a person what was attempted, on which object, and what to do;
/// its code tells a program what kind of failure it is. Where a header says "@throws Error" without a code, it is
/// kInvalidArgument. A function that is not noexcept may throw std::bad_alloc, even if its comment does not mention it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "ps_shm/export.hpp"
#include "ps_shm/types.hpp"

namespace PS_SHM_API ps_shm {

/// What kind of failure an Error is. docs/errors.md says for each what causes it and what to do. A later version may
/// add some, so a `switch` over them needs a `default`.
enum class ErrorCode : std::uint32_t {
  kInvalidArgument = 1,  ///< an argument or a setting has a value that it cannot have
  kInvalidState,         ///< the object or the job is not in a state for this call
  kNotFound,             ///< there is no such job, variable, publication, checkpoint, record or file
  kAlreadyExists,        ///< the name, the task or the folder is in use by a living process
  kRankTaken,            ///< a living worker has this rank
  kExhausted,            ///< a limit that the job or the publication began with is reached
  kNoSpace,              ///< there is no room in /dev/shm, in memory or on the disk
  kIncompatible,         ///< made by another version or build, or for another model, than what uses it
  kDamaged,              ///< a segment or a file holds what nobody can have written
  kPermissionDenied,     ///< the segment, the file or the job belongs to another user, or every user may change it
  kUnavailable,          ///< other processes are stopped or busy; the same call may succeed later
  kTimedOut,             ///< a limit of time has passed: the caller's, or one of the job's settings
  kSystem,               ///< a call of the operating system failed otherwise; the text has its reason
  kDevice,               ///< there is no such GPU, or it failed
  kNotFinite,            ///< a loss or a value is NaN or infinite
  kInterrupted,          ///< class Interrupted
  kJobFinished,          ///< class JobFinished
  kPublisherGone,        ///< class PublisherGone
};

/// The name of a code as Python and docs/errors.md write it, such as "RANK_TAKEN"; "unknown" for a number that is none.
/// @progress wait-free.
PS_SHM_API const char* to_string(ErrorCode code) noexcept;

/// A failure of the library that is not the standard library's own (std::bad_alloc, std::system_error of threads).
/// @code
///   try {
///     ps_shm::Worker worker({.job = "demo", .rank = 1});
///   } catch (const ps_shm::Error& error) {
///     if (error.code() != ps_shm::ErrorCode::kRankTaken) throw;
///     // ...
///   }
/// @endcode
class Error : public std::runtime_error {
 public:
  /// `message`: one line; settings stand in backquotes, by their names. `code`: what kind of failure it is.
  ///
  /// @throws std::bad_alloc.
  explicit Error(const std::string& message, ErrorCode code = ErrorCode::kInvalidArgument)
      : std::runtime_error(message), code_(code) {}

  /// What kind of failure it is.
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// A wait ended because its caller asked for that (`stop_requested` of WorkerOptions and the like).
class Interrupted : public Error {
 public:
  /// The code is kInterrupted.
  ///
  /// @throws std::bad_alloc.
  Interrupted() : Error("interrupted", ErrorCode::kInterrupted) {}
};

/// The job has finished its last step, or was ended: a worker has nothing left to do. Not a failure.
class JobFinished : public Error {
 public:
  /// The code is kJobFinished, and `message` one line.
  ///
  /// @throws std::bad_alloc.
  explicit JobFinished(const std::string& message) : Error(message, ErrorCode::kJobFinished) {}
};

/// A length of time in seconds. `10s` and `500ms` of std::chrono_literals convert to it, and `Seconds(0.5)` is one.
using Seconds = std::chrono::duration<double>;

/// How long a call waits at most. 0 or less: it does not wait; std::nullopt: there is no limit. Each wait that a caller
/// or a job can limit has its limit in this form.
using WaitLimit = std::optional<Seconds>;

/// A limit of time has passed: the caller's, or the job's step_timeout. Each wait that has a limit throws this when it
/// is over, unless its comment says otherwise.
class Timeout : public Error {
 public:
  /// The code is kTimedOut, and `message` one line.
  ///
  /// @throws std::bad_alloc.
  explicit Timeout(const std::string& message) : Error(message, ErrorCode::kTimedOut) {}
};

/// A subscriber waits for a generation of a publication that has no live publisher.
class PublisherGone : public Error {
 public:
  /// The code is kPublisherGone, and `message` one line.
  ///
  /// @throws std::bad_alloc.
  explicit PublisherGone(const std::string& message) : Error(message, ErrorCode::kPublisherGone) {}
};

}  // namespace ps_shm
