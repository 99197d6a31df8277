// What comes of attaching to a segment, and what to tell about it, or about a segment that is damaged.
#pragma once

#include <string>

#include "ps_shm/errors.hpp"

namespace ps_shm::shm {

// The result of attaching. Only for the first three is it worth trying again.
enum class AttachOutcome {
  kAbsent,
  kBeingCreated,
  kShardMissing,  // of a job: a ps task has not started yet, or the job is being removed
  kReady,
  kOtherVersion,
  kOtherBuild,
  kDamaged,
  kExposed,      // its mode gives every user some right, so its contents cannot be trusted
  kNoPermission  // it belongs to another user and is not trusted
};

// Says what the outcome means and what to do, for messages; of what is absent also what there is on this machine. Empty
// for kReady.
std::string describe(AttachOutcome outcome, const std::string& name);

// The error to throw for the outcome, with that text and the matching code.
Error attach_error(AttachOutcome outcome, const std::string& name);

// Throws Error (kDamaged): "/dev/shm/SEGMENT is damaged: WHAT; what to do".
[[noreturn]] void fail_damaged(const std::string& segment, const std::string& what);

}  // namespace ps_shm::shm
