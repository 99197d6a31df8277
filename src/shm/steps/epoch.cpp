#include "shm/steps/epoch.hpp"

namespace ps_shm::shm {

std::optional<std::uint64_t> try_set_epoch(JobSegments& job, std::uint64_t epoch) noexcept {
  BarrierShm& barrier = job.barrier(0);
  std::uint64_t decision = barrier.decision.load_acquire();  // (barrier.A5)
  for (;;) {
    const std::uint64_t rounds = decided_rounds(decision);
    if (barrier.step.load_acquire() != rounds) return std::nullopt;  // (barrier.A6) that step is being applied
    const std::uint64_t mine = make_decision(rounds, epoch, proposer_of(decision));
    if (!barrier.decision.try_exchange_acq_rel(decision, mine)) continue;  // (snapshot.C10) pairs with barrier.A4
    fault_point(FaultPoint::kSnapshotMoved);
    return rounds;
  }
}

}  // namespace ps_shm::shm
