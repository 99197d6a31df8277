// A barrier that survives the death of anybody in it: arrive, decide, apply, open.
//
// Round t, for the worker of rank r (docs/protocols.md, barrier)
//   arrive  barrier.A1 entry[r].published = t + 1, release        pairs with barrier.A2; its gradient is complete
//   decide  barrier.A2 for each rank: state and liveness, then `active_from`, then `published` (barrier.B2). A rank
//                      that has published is in, dead or not. A living one may be missing where a quorum has
//                      published, or where it was waited for too long (barrier.B12; a stopped process is not dead,
//                      locks.L3)
//           barrier.A3 `included` of each who was in round t - 1 and is not in the set is raised to t (barrier.B11). The
//                      set, and the settings that hold for the round (barrier.B8), go into entry[r], tagged t + 1
//                      (barrier.B3); a predecessor's proposal for t is taken as it is
//           barrier.A4 decision: {smaller step, epoch, ...} -> {t + 1, epoch, r}, acq_rel    pairs with barrier.A5; the
//                      first wins. The epoch of cuts that it finds stays in it (cut.C10)
//   apply   barrier.A5 each worker reads the decision and the winner's proposal, checks that the round is still t, and
//                      applies
//   open    barrier.A6 step: t -> t + 1 by any worker that has seen all applied (barrier.B6), acq_rel; wakes all
// A meeting (barrier 1) has nothing to apply: who finds by barrier.A2 that it is complete opens the next one at once.
// Nothing that round t reads (proposal, publication, gradient) is overwritten before barrier.A6. A contribution that
// comes too late for the set is dropped, never used later. Of two workers that arrive and then look, one sees the
// other: nobody sleeps without a fence and another look (waiting.W1). The first round waits until as many ranks as the
// job has workers have joined; a worker that joined and died counts (barrier.B7).
// Progress: arrive, decide, apply and open are lock-free; passing waits for the living to arrive, nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "shm/futex.hpp"
#include "shm/job_segments.hpp"
#include "shm/rank_set.hpp"

namespace ps::shm {

// What a round was decided to be.
struct Decision {
  RankSet contributors;
  float learning_rate = 0.0F;  // before the schedule
  float clip_norm = 0.0F;
  std::uint64_t epoch = 0;  // of cuts, that the step's updates belong to (cut.C10)
};

// BarrierShm::decision.
constexpr std::uint64_t decided_rounds(std::uint64_t decision) noexcept { return decision >> 20; }
constexpr std::uint32_t proposer_of(std::uint64_t decision) noexcept { return decision & 0xff; }
inline constexpr std::uint64_t kDecisionEpoch = 0xfff;  // the bits that a decision has of the epoch
constexpr std::uint64_t epoch_bits(std::uint64_t decision) noexcept { return decision >> 8 & kDecisionEpoch; }
constexpr std::uint64_t make_decision(std::uint64_t rounds, std::uint64_t epoch, std::uint32_t proposer) noexcept {
  return rounds << 20 | (epoch & kDecisionEpoch) << 8 | proposer;
}
static_assert(kMaxRanks <= 256, "a proposer has 8 bits");

// cut.C10: lets the training step that nobody has decided yet belong to that epoch, and all that follow. Returns that
// step; nothing while the one before is being applied. Lock-free.
std::optional<std::uint64_t> try_set_epoch(JobSegments& job, std::uint64_t epoch) noexcept;

class Barrier {
 public:
  Barrier(JobSegments& job, std::uint32_t rank, std::uint32_t which)
      : job_(job),
        rank_(rank),
        which_(which),
        patience_(patience_among(job.config().workers)),
        look_every_((rank + 1) % job.config().workers == 0 || patience_.spins < Patience{}.spins ? 1 : kLookEvery),
        known_dead_(job.ranks()),
        left_out_(job.ranks()) {}

  std::uint64_t round() const noexcept { return shared().step.load_acquire(); }  // (barrier.A6)

  // Whether this rank, through a predecessor perhaps, has arrived at that round (barrier.B4).
  bool has_arrived(std::uint64_t round) const noexcept {
    return entry(rank_).published.load_acquire() == round + 1;  // (barrier.A2) pairs with a predecessor's barrier.A1
  }

  // barrier.A1. Requires: this worker's contribution is complete.
  void arrive(std::uint64_t round) noexcept;

  // Waits for the round's decision, calls apply(decision) unless the round is over by then, and opens the next. Of a
  // meeting (barrier 1) it waits until all have arrived, and applies nothing. each_slice(missing) runs before each sleep;
  // `missing` are the living who have not arrived. True: go on without them, in this round and until they show that they
  // go on. It throws to give up.
  template <class Apply, class EachSlice>
  void finish(std::uint64_t round, Apply&& apply, EachSlice&& each_slice) {
    std::vector<std::uint32_t>& missing = missing_;
    const std::uint32_t look_every = model_of(&shared().futex) != nullptr ? 1 : look_every_;  // a model has no time
    std::uint32_t turns = 0;
    wait_for_fact(
        shared().futex,
        [&] {
          return this->round() != round || is_decided(round) ||
                 (++turns % look_every == 0 && try_decide(round, false, missing));
        },
        [&] {
          if (try_decide(round, true, missing) || !each_slice(std::as_const(missing))) return;
          leave_out(missing);
          static_cast<void>(try_decide(round, true, missing));
        },
        patience_);
    const bool is_mine = std::exchange(has_decided_, false);
    Decision decision;
    if (read_decision(round, decision)) {
      fault_point(FaultPoint::kHelpRead);
      known_ = round + 1, was_in_known_ = decision.contributors.contains(rank_);
      apply(std::as_const(decision));
      open(round);
    }
    if (is_mine) note_decision(round);  // now that nobody waits
  }

  // Whether this rank's arrival made it into that round. Requires: this is barrier 0, the round is over, and no later
  // one was arrived at.
  bool was_in(std::uint64_t round) const noexcept;

  // barrier.B12: says that this rank takes part again, to those that have left it out. Requires: it has noticed that a
  // round went on without it. Wait-free.
  void come_back() noexcept;

  // How many of the job's workers have not joined yet. 0 from the first round's end on.
  std::uint32_t still_to_join() const noexcept;

  // barrier.A2 to barrier.A4. True: the round is decided, by this call or by another's; of a meeting, it is over.
  // `look_at_locks`: ask the kernel for the living, a system call per missing rank; otherwise only deaths known from
  // before count.
  bool try_decide(std::uint64_t round, bool look_at_locks, std::vector<std::uint32_t>& missing);

  // Whether it is, so that helpers may be applying it unless a later round is under way.
  bool is_decided(std::uint64_t round) const noexcept {
    return decided_rounds(shared().decision.load_acquire()) > round;  // (barrier.A5) pairs with barrier.A4
  }

  // barrier.A5. False: the round is over.
  bool read_decision(std::uint64_t round, Decision& decision) const noexcept;

 private:
  BarrierShm& shared() const noexcept { return job_.barrier(which_); }
  BarrierEntryShm& entry(std::uint32_t rank) const noexcept { return job_.worker(rank).barriers[which_]; }
  void open(std::uint64_t round) noexcept;
  bool proposes(std::uint32_t proposer, std::uint32_t rank) const noexcept;
  void note_left_behind(std::uint64_t round, const RankSet& arrived) noexcept;
  void note_decision(std::uint64_t round) noexcept;

  // Where each worker has a core, one of them looks at all arrivals at every turn, the others at one turn in so many. A
  // look takes the lines of those who arrive, and two who decide at the same time take each other's. That one is the
  // last rank. It applies the only chunk of a step that has one (SyncWork), so it goes on from its own decision.
  static constexpr std::uint32_t kLookEvery = 16;

  JobSegments& job_;
  std::uint32_t rank_, which_;
  Patience patience_;
  std::uint32_t look_every_;            // one of so many turns of a wait looks at all arrivals
  std::vector<std::uint32_t> missing_;  // of the wait under way
  bool has_decided_ = false;            // this rank's proposal was the one
  std::uint32_t quorum_ = 0;            // that it was made with
  std::uint64_t known_ = 0;             // 1 + the last round whose decision this rank has read
  bool was_in_known_ = false;
  // What a rank's entry said when it was left out; it is waited for again once that has changed.
  struct LeftOut {
    std::uint64_t published = 0, active_from = 0;
    bool is_set = false;
  };
  LeftOut look_at(std::uint32_t rank) const noexcept;
  void leave_out(const std::vector<std::uint32_t>& missing) noexcept;
  bool is_left_out(std::uint32_t rank) const noexcept;

  std::vector<std::uint64_t> known_dead_;  // per rank: its last holder that is known to be dead
  std::vector<LeftOut> left_out_;          // per rank
};

}  // namespace ps::shm
