#include "shm/steps/cut.hpp"

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
  const std::uint64_t given_up = job.state().cut.given_up.load_relaxed();  // relaxed: an old value only makes it wait
  for (std::uint32_t rank = 0; rank < job.ranks(); ++rank) {
    const std::uint64_t pushing = job.worker(rank).pushing.load_acquire();  // (cut.C8) pairs with cut.C7
    if (pushing == 0 || pushing > epoch || own == rank) continue;
    if (look_at_locks && !job.is_alive(rank)) continue;
    (pushing <= given_up ? found.stuck : found.old).insert(rank);
  }
  return found;
}

// Advances the word to the next state of the pause; the first process to do so wakes the others.
void move_on(CutShm& cut, std::uint64_t from, CutState to) noexcept {
  if (!cut.word.try_exchange_acq_rel(from, make_cut(epoch_of(from), to))) return;  // (cut.C8) pairs with cut.C3
  fault_point(FaultPoint::kCutMoved);
  if (to == CutState::kOpen) futex_announce(cut.futex);
}

bool is_draining(std::uint64_t word) noexcept {
  return cut_state(word) == CutState::kDraining || cut_state(word) == CutState::kDrainingToCopy;
}
CutState behind(std::uint64_t word) noexcept {
  return cut_state(word) == CutState::kDrainingToCopy ? CutState::kCopying : CutState::kOpen;
}

// A waiter's part. `look_at_locks`: also check whether snapshotter and pushers are alive, and the time.
void try_end_pause(JobSegments& job, std::uint32_t rank, bool look_at_locks) noexcept {
  CutShm& cut = job.state().cut;
  const std::uint64_t word = cut.word.load_acquire();  // (cut.C3)
  if (cut_state(word) == CutState::kOpen) return;
  if (is_draining(word)) {
    fence_store_load();  // (cut.C8) pairs with cut.C2: a waiter reads as the snapshotter does
    const Pushers pushers = pushers_before(job, epoch_of(word), look_at_locks, rank);
    if (pushers.old.empty() && pushers.stuck.empty()) return move_on(cut, word, behind(word));
  }
  if (!look_at_locks) return;
  // The snapshotter ends the pause after its patience. If twice that time has passed, the snapshotter is stopped, too.
  constexpr std::uint64_t kGraceNs = 100'000'000;
  const std::uint64_t until = cut.since_ns.load_relaxed() + 2 * cut.patience_ns.load_relaxed() + kGraceNs;
  if (now_ns() < until && job.locks().is_held_by_other(kSnapshotByte)) return;
  std::uint64_t forced = cut.forced.load_acquire();  // (cut.C11)
  // (cut.C11) The snapshotter checks it when it finds the word open. Only raised: it may be a later epoch's by now.
  while (forced < epoch_of(word) && !cut.forced.try_exchange_acq_rel(forced, epoch_of(word))) {
  }
  fault_point(FaultPoint::kCutForced);
  move_on(cut, word, CutState::kOpen);
}

bool is_any_runnable(const JobSegments& job, const RankSet& ranks) {
  for (std::uint32_t rank = 0; rank < job.ranks(); ++rank)
    if (ranks.contains(rank) && is_runnable(job.worker(rank).pid.load_relaxed())) return true;  // relaxed: a hint
  return false;
}

}  // namespace

void wait_until_open(JobSegments& job, std::uint32_t rank, std::uint64_t epoch) noexcept {
  CutShm& cut = job.state().cut;
  WorkerShm& entry = job.worker(rank);
  entry.waiting_on.store_relaxed(epoch);                                          // relaxed: waiting.W3 publishes it
  entry.waiting_for.store_release(static_cast<std::uint32_t>(WaitingFor::kCut));  // (waiting.W3)
  wait_for_fact(
      cut.futex,
      [&] {
        try_end_pause(job, rank, false);
        const std::uint64_t word = cut.word.load_acquire();  // (cut.C3)
        return epoch_of(word) != epoch || cut_state(word) == CutState::kOpen;
      },
      [&] { try_end_pause(job, rank, true); });
  entry.waiting_for.store_release(static_cast<std::uint32_t>(WaitingFor::kNothing));  // (waiting.W3)
}

CutMaker::CutMaker(JobSegments& job) noexcept : job_(job) {
  CutShm& cut = job.state().cut;
  const std::uint64_t word = cut.word.load_acquire();  // (cut.C3)
  if (cut_state(word) != CutState::kOpen) move_on(cut, word, CutState::kOpen);
}

MadeCut CutMaker::drain(std::uint64_t patience_ns, bool to_copy, std::optional<std::uint32_t> rank) {
  CutShm& cut = job_.state().cut;
  const std::uint64_t began = now_ns();
  cut.since_ns.store_relaxed(began);  // relaxed, as the next: the word publishes them
  cut.patience_ns.store_relaxed(patience_ns);
  fault_point(FaultPoint::kCutReady);
  std::uint64_t word = cut.word.load_acquire();  // (cut.C8) a dead snapshotter may have left any state
  const CutState state = to_copy ? CutState::kDrainingToCopy : CutState::kDraining;
  while (!cut.word.try_exchange_acq_rel(word, make_cut(epoch_of(word) + 1, state))) {  // (cut.C8)
  }
  MadeCut made;
  made.epoch = epoch_of(word) + 1;
  fault_point(FaultPoint::kCutBegun);
  fence_store_load();  // (cut.C8) pairs with cut.C2
  constexpr std::uint64_t kSpinNs = 50'000, kSleepNs = 50'000, kLookNs = 1'000'000;
  constexpr int kMostPatience = 20;  // how often its patience is extended for processes that have no core
  int patient = 1;
  std::uint64_t next_look = began + kLookNs, until = began + patience_ns;
  const std::uint64_t spins_until = monotonic_ns() + kSpinNs;  // not the test clock's time, which may stand still
  const std::uint64_t mine = make_cut(made.epoch, state);
  while (cut.word.load_acquire() == mine) {  // (cut.C8) otherwise a waiter has ended the drain
    const std::uint64_t now = now_ns();
    const bool looks = now >= next_look;
    const Pushers pushers = pushers_before(job_, made.epoch, looks, rank);
    if (pushers.old.empty() && (pushers.stuck.empty() || looks)) {
      made.split = pushers.stuck;
      move_on(cut, mine, behind(mine));
      break;
    }
    if (looks) next_look = now + kLookNs;
    if (now > until && patient < kMostPatience && is_any_runnable(job_, pushers.old)) {
      ++patient;
      until = now + patience_ns;
      cut.patience_ns.store_relaxed(until - began);  // relaxed: only a limit for waiters
    } else if (now > until) {
      made.split = pushers_before(job_, made.epoch, true, rank).old;
      for (std::uint32_t one = 0; one < job_.ranks(); ++one)
        if (pushers.stuck.contains(one)) made.split.insert(one);
      cut.given_up.store_relaxed(made.epoch);  // relaxed: a hint for the next snapshotter
      fault_point(FaultPoint::kCutGivenUp);
      move_on(cut, mine, behind(mine));
      break;
    }
    if (monotonic_ns() < spins_until)
      spin_pause();
    else
      sleep_ns(kSleepNs);
  }
  made.step = job_.steps_done();
  made.is_forced = cut.forced.load_acquire() == made.epoch;  // (cut.C11)
  return made;
}

bool CutMaker::open(std::uint64_t epoch) noexcept {
  CutShm& cut = job_.state().cut;
  move_on(cut, make_cut(epoch, CutState::kCopying), CutState::kOpen);
  return cut.forced.load_acquire() != epoch;  // (cut.C11)
}

MadeCut CutMaker::between_steps(std::uint64_t patience_ns) {
  CutShm& cut = job_.state().cut;
  cut.since_ns.store_relaxed(now_ns());  // relaxed: diagnostic only
  fault_point(FaultPoint::kCutReady);
  std::uint64_t word = cut.word.load_acquire();                                                  // (cut.C8)
  while (!cut.word.try_exchange_acq_rel(word, make_cut(epoch_of(word) + 1, CutState::kOpen))) {  // (cut.C8)
  }
  MadeCut made;
  made.epoch = epoch_of(word) + 1;
  fault_point(FaultPoint::kCutBegun);
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
    if (job_.worker(rank).holders.load_acquire() != 0) made.split.insert(rank);  // (ranks.J4)
  made.is_held_up = job_.locks().is_any_rank_held_by_other();
  return made;
}

std::uint64_t CutMaker::longest_push_ns(bool& is_complete) const noexcept {
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
