// A snapshot point: one consistent state of all variables while pushes go on.
//
// Each snapshot point has a number, the epoch. A push takes the epoch at its start, and is contained in snapshot E
// exactly if its epoch is below E. Nothing is copied when the snapshot point is made: the first push of epoch E to a
// chunk performs a copy-on-write, in the swap that it makes anyway. The pre-image field of the new buffer
// names the replaced one.
//
// Protocol; `word` is {epoch : 40, state : 2} (docs/protocols.md, snapshot)
//   push   snapshot.C1 e = epoch(word), relaxed: a guess
//          snapshot.C2 pushing[rank] = e + 1, release; fence seq_cst        pairs with snapshot.C8's
//          snapshot.C3 word, acquire, is {e, open}: go on. Another epoch: again from snapshot.C2, with that epoch
//          snapshot.C4 {e, not open}: wait until it is; a waiter may end the drain, too
//          snapshot.C5 per chunk, after slot.W1: {t, q} = the pre-image field of the current buffer B
//          snapshot.C6 in slot.W6: if t < e, the new buffer's field is {e, B} and the push gains q; otherwise the
//                      field is {t, q}, and the push gains B
//          snapshot.C7 pushing[rank] = 0, release                           pairs with snapshot.C8's reading
//   point  snapshot.C8 with kSnapshotByte held: word -> {E, draining}, acq_rel; fence seq_cst; every rank's pushing,
//                      acquire, is 0 or above E, or the rank's byte is free; word -> {E, copying}, where in-place
//                      variables are copied during the pause; word -> {E, open}
//   copy   snapshot.C9 {t, q} of a chunk's untorn current buffer B: if t < E, the image is B, otherwise q
//          snapshot.C13 the step of the snapshot is read before a reading of the word that is {E, draining}
// Of "announce, read the word" and "advance the word, read the announcements", one sees the other. So when the snapshot
// point opens, all pushes with an epoch below E are over, and none of epoch E has begun.
//
// In sync mode the updates are those of steps, and the step's decision has their epoch (snapshot.C10, barrier.hpp).
// There is no drain. A snapshotter may also order the point before a step that is still to come (snapshot.C12).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "shm/base/futex.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/segment/rank_set.hpp"
#include "shm/steps/epoch.hpp"

namespace ps_shm::shm {

// snapshot.C4: waits until the snapshot point `epoch`, which the push of rank `rank` has announced, is open or
// superseded. This takes as long as the longest push under way; it never waits for dead processes, nor longer than the
// snapshot's patience for stopped ones.
void wait_until_open(JobSegments& job, std::uint32_t rank, std::uint64_t epoch) noexcept;

// Announces a push of the rank (state.K1); returns its epoch. end_push() must follow. Waits only while a snapshot
// point is being made.
inline std::uint64_t begin_push(JobSegments& job, std::uint32_t rank, WorkerShm& entry) noexcept {
  const SnapshotPointShm& point = job.state().snapshot_point;
  for (std::uint64_t guess = point.word.load_relaxed();;) {  // (snapshot.C1) relaxed: snapshot.C3 checks it
    const std::uint64_t epoch = epoch_of(guess);
    entry.pushing.store_release(epoch + 1);  // (snapshot.C2) release: a reader has the rank's earlier pushes
    fault_point(FaultPoint::kPushAnnounced);
    fence_store_load();                                    // (snapshot.C2) pairs with snapshot.C8
    const std::uint64_t word = point.word.load_acquire();  // (snapshot.C3) pairs with snapshot.C8
    if (word == guess && snapshot_state(word) == SnapshotState::kOpen) return epoch;
    if (epoch_of(word) == epoch && snapshot_state(word) != SnapshotState::kOpen) wait_until_open(job, rank, epoch);
    guess = word;
  }
}
inline void end_push(WorkerShm& entry) noexcept {
  entry.pushing.store_release(0);  // (snapshot.C7) pairs with snapshot.C8
  fault_point(FaultPoint::kPushOver);
}

// state.R2: whether a rank other than `own` is in a push. A dead rank is not, but this is only checked with
// `look_at_locks`: one system call for each rank that has announced a push. A reader that must not see a part of a
// push calls this between its copies and its second read of the versions (state.K2). Wait-free.
inline bool is_any_pushing(const JobSegments& job, std::uint32_t own, bool look_at_locks) noexcept {
  for (std::uint32_t rank = 0; rank < job.ranks(); ++rank) {
    if (rank == own || job.worker(rank).pushing.load_acquire() == 0) continue;  // (state.R2) pairs with snapshot.C7
    if (!look_at_locks || job.is_alive(rank)) return true;
  }
  return false;
}

// The result of making a snapshot point.
struct SnapshotPoint {
  std::uint64_t epoch = 0, step = 0;
  RankSet partial_ranks;    // ranks whose pushes are partially included
  bool is_forced = false;   // a waiter opened it before the snapshotter had checked: make it again
  bool is_held_up = false;  // sync: the step being applied does not end, and workers are alive: try later
};

// Makes a job's snapshot points. Requires: the caller holds kSnapshotByte for the lifetime of the object.
class SnapshotPointMaker {
 public:
  // Ends the pause of a snapshotter that died during it.
  explicit SnapshotPointMaker(JobSegments& job) noexcept;

  // snapshot.C8: advances the epoch and waits until each push of an older epoch has ended. `patience_ns`: the longest
  // wait for pushes that do not end; their ranks are reported as `partial_ranks`. With `to_copy` the pause lasts until
  // open(), within the same limit. `rank`: the caller's own rank, which is in no push.
  SnapshotPoint drain(std::uint64_t patience_ns, bool to_copy, std::optional<std::uint32_t> rank);

  // Ends the pause. False: a waiter has ended it earlier because the patience was over, so the copies may be
  // inconsistent.
  [[nodiscard]] bool open(std::uint64_t epoch) noexcept;

  // snapshot.C10, in sync mode: the state between two steps. Waits until the step that is being applied is complete; no
  // worker waits for this. If all workers have died in the middle of a step, it is the state that they have left.
  SnapshotPoint between_steps(std::uint64_t patience_ns);

  // snapshot.C12, in sync mode: the state before `step`, which workers make when they come to it, so that it is exact
  // however late this process notices. Waits for the decision of that step; polls `give_up` each millisecond.
  // None: it was given up, or the step was decided before the order.
  std::optional<SnapshotPoint> before_step(std::uint64_t step, const std::function<bool()>& give_up);

  // Estimates how long a push of this job takes: the longest of the recent pushes of all workers. `is_complete`: each
  // worker that is in a push has ended an earlier one.
  std::uint64_t longest_push_ns(bool& is_complete) const noexcept;

 private:
  std::uint64_t advance_epoch() noexcept;  // in sync mode; returns the new one

  JobSegments& job_;
};

}  // namespace ps_shm::shm
