// What a worker does while it waits at a barrier, of a sync step or of a meeting: says whom it waits for, keeps the
// deadline, listens.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shm/barrier.hpp"
#include "worker/core.hpp"
#include "worker/waits.hpp"

namespace ps {

// For Barrier::finish, to call before each sleep. Good for one round.
class BarrierWait {
 public:
  // `is_step`: of a sync step, which goes on without the missing when step_timeout_seconds are over.
  BarrierWait(WorkerCore& core, const shm::Barrier& barrier, std::uint64_t round, bool is_step) noexcept
      : core_(core), barrier_(barrier), round_(round), is_step_(is_step) {}

  // True: go on without them. Throws JobFinished where the job is ended, Interrupted, and when the time is over Error:
  // of a meeting, and of a first step whose workers have not all joined.
  bool operator()(const std::vector<std::uint32_t>& missing);

 private:
  WorkerCore& core_;
  const shm::Barrier& barrier_;
  const std::uint64_t round_;
  const bool is_step_;
  std::optional<Wait> wait_;  // most waits are over before they get to a sleep
  std::optional<WaitMark> mark_;
};

}  // namespace ps
