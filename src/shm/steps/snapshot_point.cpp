#include "shm/steps/snapshot_point.hpp"

#include <algorithm>

#include "shm/base/clock.hpp"
#include "shm/base/process_state.hpp"

namespace ps_shm::shm {
namespace {

// Ranks that are in a push of an older epoch than `epoch`. `look_at_locks`: excludes dead ranks, by a system call for
// each. A push that an earlier snapshotter has given up is stuck: no process waits for it twice.
struct Pushers {
  RankSet old, stuck;
};

Pushers pushers_before(const JobSegments& job, std::uint64_t epoch, bool look_at_locks,
                       std::optional<std::uint32_t> own) noexcept {
  Pushers found;
  const std::uint64_t given_up =
      job.state().snapshot_point.given_up.load_relaxed();  // relaxed: an old value only makes it wait
  for (std::uint32_t rank = 0; rank < job.ranks(); ++rank) {
    const std::uint64_t pushing = job.worker(rank).pushing.load_acquire();  // (snapshot.C8) pairs with snapshot.C7
    if (pushing == 0 || pushing > epoch || own == rank) continue;
    if (look_at_locks && !job.is_alive(rank)) continue;
    (pushing <= given_up ? found.stuck : found.old).insert(rank);
  }
  return found;
}

// Advances the word to the next state of the pause; the first process to do so wakes the others.
void move_on(SnapshotPointShm& point, std::uint64_t from, SnapshotState to) noexcept {
  const std::uint64_t next = make_snapshot_word(epoch_of(from), to);
  if (!point.word.try_exchange_acq_rel(from, next)) return;  // (snapshot.C8) pairs with snapshot.C3
  fault_point(FaultPoint::kSnapshotMoved);
  if (to == SnapshotState::kOpen) futex_announce(point.futex);
}

bool is_draining(std::uint64_t word) noexcept {
  return snapshot_state(word) == SnapshotState::kDraining || snapshot_state(word) == SnapshotState::kDrainingToCopy;
}
SnapshotState behind(std::uint64_t word) noexcept {
  return snapshot_state(word) == SnapshotState::kDrainingToCopy ? SnapshotState::kCopying : SnapshotState::kOpen;
}

// A waiter's part. `look_at_locks`: also check whether snapshotter and pushers are alive, and the time.
void try_end_pause(JobSegments& job, std::uint32_t rank, bool look_at_locks) noexcept {
  SnapshotPointShm& point = job.state().snapshot_point;
  const std::uint64_t word = point.word.load_acquire();  // (snapshot.C3)
  if (snapshot_state(word) == SnapshotState::kOpen) return;
  if (is_draining(word)) {
    fence_store_load();  // (snapshot.C8) pairs with snapshot.C2: a waiter reads as the snapshotter does
    const Pushers pushers = pushers_before(job, epoch_of(word), look_at_locks, rank);
    if (pushers.old.empty() && pushers.stuck.empty()) return move_on(point, word, behind(word));
  }
  if (!look_at_locks) return;
  // The snapshotter ends the pause after its patience. If twice that time has passed, the snapshotter is stopped, too.
  constexpr std::uint64_t kGraceNs = 100'000'000;
  const std::uint64_t until = point.since_ns.load_relaxed() + 2 * point.patience_ns.load_relaxed() + kGraceNs;
  if (now_ns() < until && job.locks().is_held_by_other(kSnapshotByte)) return;
  std::uint64_t forced = point.forced.load_acquire();  // (snapshot.C11)
  // (snapshot.C11) The snapshotter checks it when it finds the word open. Only raised: it may be newer by now.
  while (forced < epoch_of(word) && !point.forced.try_exchange_acq_rel(forced, epoch_of(word))) {
  }
  fault_point(FaultPoint::kSnapshotForced);
  move_on(point, word, SnapshotState::kOpen);
}

bool is_any_runnable(const JobSegments& job, const RankSet& ranks) {
  for (std::uint32_t rank = 0; rank < job.ranks(); ++rank)
    if (ranks.contains(rank) && is_runnable(job.worker(rank).pid.load_relaxed())) return true;  // relaxed: a hint
  return false;
}

}  // namespace

void wait_until_open(JobSegments& job, std::uint32_t rank, std::uint64_t epoch) noexcept {
  SnapshotPointShm& point = job.state().snapshot_point;
  WorkerShm& entry = job.worker(rank);
  entry.waiting_on.store_relaxed(epoch);  // relaxed: waiting.W3 publishes it
  entry.waiting_for.store_release(static_cast<std::uint32_t>(WaitingFor::kSnapshotPoint));  // (waiting.W3)
  wait_for_fact(
      point.futex,
      [&] {
        try_end_pause(job, rank, false);
        const std::uint64_t word = point.word.load_acquire();  // (snapshot.C3)
        return epoch_of(word) != epoch || snapshot_state(word) == SnapshotState::kOpen;
      },
      [&] { try_end_pause(job, rank, true); });
  entry.waiting_for.store_release(static_cast<std::uint32_t>(WaitingFor::kNothing));  // (waiting.W3)
}

SnapshotPointMaker::SnapshotPointMaker(JobSegments& job) noexcept : job_(job) {
  SnapshotPointShm& point = job.state().snapshot_point;
  point.at_step.store_relaxed(0);                        // relaxed: the next exchange of the word publishes it
  const std::uint64_t word = point.word.load_acquire();  // (snapshot.C3)
  if (snapshot_state(word) != SnapshotState::kOpen) move_on(point, word, SnapshotState::kOpen);
}

SnapshotPoint SnapshotPointMaker::drain(std::uint64_t patience_ns, bool to_copy, std::optional<std::uint32_t> rank) {
  SnapshotPointShm& point = job_.state().snapshot_point;
  const std::uint64_t began = now_ns();
  point.since_ns.store_relaxed(began);  // relaxed, as the next: the word publishes them
  point.patience_ns.store_relaxed(patience_ns);
  fault_point(FaultPoint::kSnapshotReady);
  SnapshotPoint made;
  made.step = job_.steps_done();                   // (snapshot.C13)
  std::uint64_t word = point.word.load_acquire();  // (snapshot.C8) a dead snapshotter may have left any state
  const SnapshotState state = to_copy ? SnapshotState::kDrainingToCopy : SnapshotState::kDraining;
  while (!point.word.try_exchange_acq_rel(word, make_snapshot_word(epoch_of(word) + 1, state))) {  // (snapshot.C8)
  }
  made.epoch = epoch_of(word) + 1;
  fault_point(FaultPoint::kSnapshotBegun);
  fence_store_load();  // (snapshot.C8) pairs with snapshot.C2
  constexpr std::uint64_t kSpinNs = 50'000, kSleepNs = 50'000, kLookNs = 1'000'000;
  constexpr int kMostPatience = 20;  // how often its patience is extended for processes that have no core
  int patient = 1;
  std::uint64_t next_look = began + kLookNs, until = began + patience_ns;
  const std::uint64_t spins_until = monotonic_ns() + kSpinNs;  // not the test clock's time, which may stand still
  const std::uint64_t mine = make_snapshot_word(made.epoch, state);
  for (;;) {
    const std::uint64_t step = job_.steps_done();
    if (point.word.load_acquire() != mine) break;  // (snapshot.C8) a waiter has ended the drain
    made.step = step;                              // (snapshot.C13) no push of this epoch had begun when it was read
    const std::uint64_t now = now_ns();
    const bool looks = now >= next_look;
    const Pushers pushers = pushers_before(job_, made.epoch, looks, rank);
    if (pushers.old.empty() && (pushers.stuck.empty() || looks)) {
      made.partial_ranks = pushers.stuck;
      move_on(point, mine, behind(mine));
      break;
    }
    if (looks) next_look = now + kLookNs;
    if (now > until && patient < kMostPatience && is_any_runnable(job_, pushers.old)) {
      ++patient;
      until = now + patience_ns;
      point.patience_ns.store_relaxed(until - began);  // relaxed: only a limit for waiters
    } else if (now > until) {
      made.partial_ranks = pushers_before(job_, made.epoch, true, rank).old;
      for (std::uint32_t one = 0; one < job_.ranks(); ++one)
        if (pushers.stuck.contains(one)) made.partial_ranks.insert(one);
      point.given_up.store_relaxed(made.epoch);  // relaxed: a hint for the next snapshotter
      fault_point(FaultPoint::kSnapshotGivenUp);
      move_on(point, mine, behind(mine));
      break;
    }
    if (monotonic_ns() < spins_until)
      spin_pause();
    else
      sleep_ns(kSleepNs);
  }
  made.is_forced = point.forced.load_acquire() == made.epoch;  // (snapshot.C11)
  return made;
}

bool SnapshotPointMaker::open(std::uint64_t epoch) noexcept {
  SnapshotPointShm& point = job_.state().snapshot_point;
  move_on(point, make_snapshot_word(epoch, SnapshotState::kCopying), SnapshotState::kOpen);
  return point.forced.load_acquire() != epoch;  // (snapshot.C11)
}

std::uint64_t SnapshotPointMaker::advance_epoch() noexcept {
  SnapshotPointShm& point = job_.state().snapshot_point;
  point.since_ns.store_relaxed(now_ns());  // relaxed: diagnostic only
  fault_point(FaultPoint::kSnapshotReady);
  std::uint64_t word = point.word.load_acquire();  // (snapshot.C8)
  // (snapshot.C12) The bits of an old decision are no sign that an order was seen. relaxed: only orders change them
  const std::uint64_t taken = epoch_bits(job_.barrier(0).decision.load_relaxed());
  const auto next = [&] { return epoch_of(word) + ((epoch_of(word) + 1) % (kDecisionEpoch + 1) == taken ? 2 : 1); };
  while (!point.word.try_exchange_acq_rel(word, make_snapshot_word(next(), SnapshotState::kOpen))) {  // (snapshot.C8)
  }
  fault_point(FaultPoint::kSnapshotBegun);
  return next();
}

std::optional<SnapshotPoint> SnapshotPointMaker::before_step(std::uint64_t step, const std::function<bool()>& give_up) {
  constexpr std::uint64_t kLookNs = 1'000'000;
  SnapshotPointShm& point = job_.state().snapshot_point;
  SnapshotPoint made;
  made.epoch = advance_epoch();
  made.step = step;
  point.at_step.store_release(step + 1);  // (snapshot.C12) pairs with epoch_to_decide
  fault_point(FaultPoint::kSnapshotMoved);
  std::uint64_t decision = 0;
  const auto is_decided = [&] {
    decision = job_.barrier(0).decision.load_acquire();  // (snapshot.C12) pairs with barrier.A4
    return decided_rounds(decision) > step;
  };
  while (!is_decided() && !give_up()) sleep_ns(kLookNs);
  point.at_step.store_relaxed(0);  // relaxed: a decider that still reads the order makes an image that nobody reads
  if (is_decided() && epoch_bits(decision) == (made.epoch & kDecisionEpoch)) return made;
  static_cast<void>(try_set_epoch(job_, made.epoch));  // the bits of the decision must not fall far behind the word
  return std::nullopt;
}

SnapshotPoint SnapshotPointMaker::between_steps(std::uint64_t patience_ns) {
  SnapshotPoint made;
  made.epoch = advance_epoch();
  const std::uint64_t began = now_ns();
  for (;;) {
    const std::optional<std::uint64_t> step = try_set_epoch(job_, made.epoch);
    if (step) {
      made.step = *step;
      return made;
    }
    if (now_ns() - began > patience_ns || !job_.locks().is_any_rank_held_by_other()) break;  // no process will apply it
    sleep_ns(50'000);
  }
  made.step = job_.steps_done();
  for (std::uint32_t rank = 0; rank < job_.ranks(); ++rank)  // whose gradients the step may have applied in part
    if (job_.worker(rank).holders.load_acquire() != 0) made.partial_ranks.insert(rank);  // (ranks.J4)
  made.is_held_up = job_.locks().is_any_rank_held_by_other();
  return made;
}

std::uint64_t SnapshotPointMaker::longest_push_ns(bool& is_complete) const noexcept {
  std::uint64_t longest = 0;
  is_complete = true;
  for (std::uint32_t rank = 0; rank < job_.ranks(); ++rank) {
    const WorkerShm& worker = job_.worker(rank);
    const std::uint64_t push = worker.push_ns.load_relaxed();  // relaxed: an estimate
    longest = std::max(longest, push);
    if (push == 0 && worker.pushing.load_relaxed() != 0) is_complete = false;  // relaxed: the same
  }
  return longest;
}

}  // namespace ps_shm::shm
