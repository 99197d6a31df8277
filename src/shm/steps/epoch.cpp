#include "shm/steps/epoch.hpp"

namespace ps_shm::shm {

// An order counts only if the word has not moved meanwhile: then it is an order of the snapshotter of that epoch.
std::uint64_t epoch_to_decide(const JobSegments& job, std::uint64_t round, std::uint64_t decision) noexcept {
  const SnapshotPointShm& point = job.state().snapshot_point;
  for (std::uint64_t word = point.word.load_acquire();;) {                       // (snapshot.C12)
    if (point.at_step.load_acquire() != round + 1) return epoch_bits(decision);  // (snapshot.C12)
    const std::uint64_t again = point.word.load_acquire();                       // (snapshot.C12)
    if (again == word) return epoch_of(word);
    word = again;
  }
}

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
