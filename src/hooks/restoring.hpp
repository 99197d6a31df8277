// Which worker puts a checkpoint into a job that has gone wrong: one, once.
//
// DIR/.restored is locked by who restores, and says what was restored last: of which instance of a job, when, how often.
#pragma once

#include <cstdint>
#include <string>

#include "ps/hooks.hpp"

namespace ps::hooks {

enum class Restored {
  kHere,       // by this call
  kByAnother,  // meanwhile, or is about to be: what was pulled is of before
  kTooOften,   // of the same checkpoint; it was not restored again
};

struct Restoration {
  Restored outcome = Restored::kHere;
  std::string folder;  // kHere, kTooOften
};

struct Moment {
  std::int64_t ns = 0;  // of the steady clock, which the machine has one of
  std::uint64_t global_step = 0;
};

Moment moment_of(const Worker& worker) noexcept;  // now

// `pulled`: when the pull began that led to a NaN. Throws Error as restore() does.
Restoration restore_once(Worker& worker, const NanGuardOptions& options, const Moment& pulled);

}  // namespace ps::hooks
