// Checks each loss before its gradient is pushed. For the loops of workers, and of processes that train without a job.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "hooks/restoring.hpp"
#include "ps_shm/hooks.hpp"

namespace ps_shm::hooks {

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
