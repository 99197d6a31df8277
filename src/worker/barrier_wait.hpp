// What a worker does while it waits at a barrier, either the one of a sync step or the user barrier: it reports which
// workers it waits for, keeps the deadline, and polls the caller's stop request.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shm/steps/barrier.hpp"
#include "worker/core.hpp"
#include "worker/waits.hpp"

namespace ps_shm {

// To be passed to Barrier::wait, which calls it before each sleep. Valid for one round.
class BarrierWait {
 public:
  // `is_step`: the barrier ends a sync step, which goes on without the missing workers after step_timeout.
  BarrierWait(WorkerCore& core, const shm::Barrier& barrier, std::uint64_t round, bool is_step) noexcept
      : core_(core), barrier_(barrier), round_(round), is_step_(is_step) {}

  // Returns true if the round is to go on without the missing workers. Throws JobFinished if the job was ended;
  // Interrupted; and Error if the time is over at a user barrier, or in a first step whose workers have not all joined.
  bool operator()(const std::vector<std::uint32_t>& missing);

 private:
  WorkerCore& core_;
  const shm::Barrier& barrier_;
  const std::uint64_t round_;
  const bool is_step_;
  std::optional<Wait> wait_;  // created at the first sleep, which most waits never reach
  std::optional<WaitMark> mark_;
};

}  // namespace ps_shm
