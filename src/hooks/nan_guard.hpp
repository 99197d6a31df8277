// Checks each loss before its gradient is pushed, and restores a checkpoint into a job that has gone wrong. For the
// loops of workers, and of processes that train without a job.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "ps_shm/hooks.hpp"

namespace ps_shm::hooks {

// Restoring (restoring.cpp): exactly one worker restores a checkpoint, and does so once. The process that restores locks
// DIR/.restored. The file tells what was restored last: into which instance of a job, when, and how often.
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

class NanGuard {
 public:
  // `worker`: null if there is no job; it must outlive this object. `who`: the start of each message. Throws Error if
  // kRestore is given without a folder or without a worker.
  NanGuard(NanGuardOptions options, Worker* worker, std::string who);

  // Whether takes() may return false.
  bool is_on() const noexcept { return options_.on_nan != OnNan::kWarn; }

  // To be called before the pull.
  void begin_step();

  // Returns false if the gradient must not be pushed. Throws Error as described for OnNan. Checks the loss alone, so
  // its cost does not depend on the size of the gradient.
  bool takes(double loss) { return std::isfinite(loss) || take_nan(loss); }

 private:
  bool take_nan(double loss);
  std::string where(double loss) const;
  void note_skip(double loss);
  void put_back(double loss);

  const NanGuardOptions options_;
  Worker* const worker_;
  const std::string who_;
  std::uint64_t steps_ = 0;  // including the current one
  std::uint64_t skipped_ = 0;
  Moment pulled_;
  bool has_warned_ = false;
};

}  // namespace ps_shm::hooks
