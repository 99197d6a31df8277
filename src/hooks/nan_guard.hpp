// Looks at each loss before its gradient is pushed. For loops of workers, and of processes that train alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "hooks/restoring.hpp"
#include "ps/hooks.hpp"

namespace ps::hooks {

class NanGuard {
 public:
  // `worker`: none where there is no job; it outlives this. `who`: how lines begin. Throws Error: kRestore without a
  // folder, or without a worker.
  NanGuard(NanGuardOptions options, Worker* worker, std::string who);

  // Whether takes() may say no.
  bool is_on() const noexcept { return options_.on_nan != OnNan::kWarn; }

  // Before the pull.
  void begin_step();

  // False: the gradient is not to be pushed. Throws Error, as OnNan says. Looks at the loss alone, so that it costs
  // nothing beside any gradient.
  bool takes(double loss) { return std::isfinite(loss) || take_nan(loss); }

 private:
  bool take_nan(double loss);
  std::string where(double loss) const;
  void note_skip(double loss);
  void put_back(double loss);

  const NanGuardOptions options_;
  Worker* const worker_;
  const std::string who_;
  std::uint64_t steps_ = 0;  // this one included
  std::uint64_t skipped_ = 0;
  Moment pulled_;
  bool has_warned_ = false;
};

}  // namespace ps::hooks
