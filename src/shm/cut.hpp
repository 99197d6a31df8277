// Consistent cuts: one state of all variables while pushes go on.
//
// A cut has a number, the epoch. A push takes the epoch at its start, and is in cut E exactly if its epoch is below E.
// Nothing is copied when the cut is made: the first push of epoch E on a chunk forks it, in the swap that it makes anyhow.
//
// Protocol, `cut` being {epoch : 40, state : 2} (docs/protocols.md, cut)
//   push   cut.C1 e = epoch(cut), relaxed: a guess
//          cut.C2 pushing[rank] = e + 1, release; fence seq_cst        pairs with cut.C8's
//          cut.C3 cut, acquire, is {e, open}: go on. Another epoch: again from cut.C2, with that one
//          cut.C4 {e, not open}: wait until it is; a waiter may end the drain, too
//          cut.C5 per chunk, behind slot.W1: {t, q} = fork of the current buffer B
//          cut.C6 in slot.W6: the new buffer's fork is {e, B} and q is gained, if t < e; otherwise {t, q}, and B is gained
//          cut.C7 pushing[rank] = 0, release                           pairs with cut.C8's look
//   cut    cut.C8 with kSnapshotByte held: cut -> {E, draining}, acq_rel; fence seq_cst; every rank's pushing, acquire,
//                 is 0 or above E, or the rank's byte is free; cut -> {E, copying}, where what lies in place is copied
//                 under the pause; cut -> {E, open}
//   copy   cut.C9 {t, q} of a chunk's whole current buffer B: t < E: the image is B, otherwise q
// Of "announce, look at the cut" and "move the cut, look at the announcements" one sees the other. So when the cut opens
// all pushes with an epoch below E are over, and none of epoch E has begun.
//
// In sync mode updates are those of steps, and the step's decision has their epoch (cut.C10, barrier.hpp). Nobody drains.
#pragma once

#include <cstdint>
#include <optional>

#include "shm/futex.hpp"
#include "shm/job_segments.hpp"
#include "shm/rank_set.hpp"

namespace ps::shm {

enum class CutState : std::uint64_t { kOpen = 0, kDraining = 1, kDrainingToCopy = 2, kCopying = 3 };

constexpr std::uint64_t make_cut(std::uint64_t epoch, CutState state) noexcept {
  return epoch << 2 | static_cast<std::uint64_t>(state);
}
constexpr std::uint64_t epoch_of(std::uint64_t cut) noexcept { return cut >> 2; }
constexpr CutState cut_state(std::uint64_t cut) noexcept { return static_cast<CutState>(cut & 3); }

inline std::uint64_t cut_epoch(const JobSegments& job) noexcept {
  return epoch_of(job.state().cut.word.load_acquire());  // (cut.C3)
}

// cut.C4: waits until the cut `epoch`, which the push of rank `rank` has announced, is open or over: for the rest of the
// longest push under way, and for nobody who is dead, or stopped for longer than the snapshot's patience.
void wait_until_open(JobSegments& job, std::uint32_t rank, std::uint64_t epoch) noexcept;

// Announces a push of the rank (state.K1); returns its epoch. end_push() has to follow. Waits only where a cut is being made.
inline std::uint64_t begin_push(JobSegments& job, std::uint32_t rank, WorkerShm& entry) noexcept {
  const CutShm& cut = job.state().cut;
  for (std::uint64_t guess = cut.word.load_relaxed();;) {  // (cut.C1) relaxed: cut.C3 checks it
    const std::uint64_t epoch = epoch_of(guess);
    entry.pushing.store_release(epoch + 1);  // (cut.C2) release: one who sees it has the rank's earlier pushes
    fault_point(FaultPoint::kPushAnnounced);
    fence_store_load();                                  // (cut.C2) pairs with cut.C8
    const std::uint64_t word = cut.word.load_acquire();  // (cut.C3) pairs with cut.C8
    if (word == guess && cut_state(word) == CutState::kOpen) return epoch;
    if (epoch_of(word) == epoch && cut_state(word) != CutState::kOpen) wait_until_open(job, rank, epoch);
    guess = word;
  }
}
inline void end_push(WorkerShm& entry) noexcept {
  entry.pushing.store_release(0);  // (cut.C7) pairs with cut.C8
  fault_point(FaultPoint::kPushOver);
}

// state.R2: whether another rank than `own` is in a push. A dead one is not, but only `look_at_locks` tells: a system
// call for each that has announced one. Who wants all of a push or nothing of it looks between its copies and a second
// look at the versions (state.K2). Wait-free.
inline bool is_any_pushing(const JobSegments& job, std::uint32_t own, bool look_at_locks) noexcept {
  for (std::uint32_t rank = 0; rank < job.ranks(); ++rank) {
    if (rank == own || job.worker(rank).pushing.load_acquire() == 0) continue;  // (state.R2) pairs with cut.C7
    if (!look_at_locks || job.is_alive(rank)) return true;
  }
  return false;
}

// A cut as it was made.
struct MadeCut {
  std::uint64_t epoch = 0, step = 0;
  RankSet split;            // whose push was cut through
  bool is_forced = false;   // somebody opened it before its maker had looked: to be made again
  bool is_held_up = false;  // sync: the step that is being applied does not end, and workers live: to be made later
};

// Makes cuts of a job. Requires: the caller holds kSnapshotByte for as long as it lives.
class CutMaker {
 public:
  // Ends the pause of one who died in it.
  explicit CutMaker(JobSegments& job) noexcept;

  // cut.C8: moves the epoch, and waits until each push of the epoch before has ended. `patience_ns`: how long at most,
  // where a push does not end; it is `split` then. With `to_copy` the pause lasts until open(), but no longer either.
  // `rank`: the caller's own, which is in no push.
  MadeCut drain(std::uint64_t patience_ns, bool to_copy, std::optional<std::uint32_t> rank);

  // Ends the pause. False: a waiter has ended it before for want of patience, so what was copied may be mixed.
  [[nodiscard]] bool open(std::uint64_t epoch) noexcept;

  // cut.C10, in sync mode: the state between two steps. Waits until the step that is being applied is, and nobody waits
  // for it. Where all have died in the middle of a step, it is the state that they have left.
  MadeCut between_steps(std::uint64_t patience_ns);

  // About how long a push of this job lasts: of those who have pushed already, the longest of their last ones.
  // `is_complete`: each who is in a push has ended one before.
  std::uint64_t longest_push_ns(bool& is_complete) const noexcept;

 private:
  JobSegments& job_;
};

}  // namespace ps::shm
