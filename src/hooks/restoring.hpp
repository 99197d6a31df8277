// Ensures that exactly one worker restores a checkpoint into a job that has gone wrong, and does so once.
//
// The process that restores locks DIR/.restored. The file tells what was restored last: into which instance of a job,
// when, and how often.
#pragma once

#include <cstdint>
#include <string>

#include "ps_shm/hooks.hpp"

namespace ps_shm::hooks {

enum class Restored {
  kHere,       // by this call
  kByAnother,  // another worker has restored it or is about to: the pulled values are older
  kTooOften,   // the same checkpoint was restored too often; it was not restored again
};

struct Restoration {
  Restored outcome = Restored::kHere;
  std::string folder;  // kHere, kTooOften
};

struct Moment {
  std::int64_t ns = 0;  // of shm::now_ns(), which is the same for all processes of a machine
  std::uint64_t global_step = 0;
};

Moment moment_of(const Worker& worker);  // the current moment

// `pulled`: when the pull that led to a NaN began. Throws Error as restore() does.
Restoration restore_once(Worker& worker, const NanGuardOptions& options, const Moment& pulled);

}  // namespace ps_shm::hooks
