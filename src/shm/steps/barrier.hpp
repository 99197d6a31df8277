// A barrier that survives the death of any participant: arrive, decide, apply, open.
//
// Round t, for the worker of rank r (docs/protocols.md, barrier)
//   arrive  barrier.A1 entry[r].published = t + 1, release        pairs with barrier.A2; its gradient is complete
//   decide  barrier.A2 for each rank: state and liveness, then `active_from`, then `published` (barrier.B2). A rank
//                      that has published is included, dead or not. A live rank may be missing if a quorum has
//                      published, or if the others have waited for it too long (barrier.B12; a stopped process is
//                      alive, locks.L3)
//           barrier.A3 `included` of each rank that was in round t - 1 and is not in the set is raised to t
//                      (barrier.B11). The set, and the settings that hold for the round (barrier.B8), go into entry[r],
//                      tagged t + 1 (barrier.B3); a predecessor's proposal for t is used as it is
//           barrier.A4 decision: {smaller step, epoch, ...} -> {t + 1, epoch, r}, acq_rel    pairs with barrier.A5; the
//                      first wins. The snapshot epoch that it finds stays in the decision (snapshot.C10),
//                      unless a snapshotter has ordered another one for this round (snapshot.C12)
//   apply   barrier.A5 each worker reads the decision and the winner's proposal, checks that the round is still t, and
//                      applies
//   open    barrier.A6 step: t -> t + 1 by any worker that has seen everything applied (barrier.B6), acq_rel; wakes all
// The user barrier (barrier 1) has nothing to apply: a worker that finds a round complete by barrier.A2 opens the next
// one at once. Nothing that round t reads (proposal, publication, gradient) is overwritten before barrier.A6. A
// contribution that comes too late for the set is dropped, never used later. If two workers arrive and then check, one
// of them sees the other: no worker sleeps without a fence and another check (waiting.W1). The first round waits until
// as many ranks as the job has workers have joined; a worker that joined and died counts (barrier.B7).
// Progress: arrive, decide, apply and open are lock-free; passing waits for the live workers to arrive, and for nothing
// else.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "shm/base/futex.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/segment/rank_set.hpp"
#include "shm/steps/epoch.hpp"

namespace ps_shm::shm {

// The content of a round's decision.
struct Decision {
  RankSet contributors;
  float lr = 0.0F;  // before the schedule
  float clip_norm = 0.0F, momentum = 0.0F, beta1 = 0.0F;
  std::uint64_t epoch = 0;  // snapshot epoch of the step's updates (snapshot.C10)
};

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

  // Whether this rank, possibly through a predecessor, has arrived at that round (barrier.B4).
  bool has_arrived(std::uint64_t round) const noexcept {
    return entry(rank_).published.load_acquire() == round + 1;  // (barrier.A2) pairs with a predecessor's barrier.A1
  }

  // barrier.A1. Requires: this worker's contribution is complete.
  void arrive(std::uint64_t round) noexcept;

  // barrier.A2 to barrier.A4. Waits until the round is decided or over; at the user barrier (barrier 1) it is over once
  // all have arrived. each_slice(missing) runs before each sleep; `missing` are the live ranks that have not arrived.
  // If it returns true, the round goes on without them, and so do later rounds until they show that they go on. It
  // throws to give up.
  template <class EachSlice>
  void wait(std::uint64_t round, EachSlice&& each_slice) {
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
  }

  // The same, and barrier.A5: returns the decision, which the caller applies before it opens the next round; none: the
  // round is already over.
  template <class EachSlice>
  std::optional<Decision> wait_decided(std::uint64_t round, EachSlice&& each_slice) {
    wait(round, each_slice);
    std::optional<Decision> decision(std::in_place);
    if (read_decision(round, *decision)) {
      fault_point(FaultPoint::kHelpRead);
      known_ = round + 1, was_in_known_ = decision->contributors.contains(rank_);
    } else {
      decision.reset();
      note_decision(round);
    }
    return decision;
  }

  // barrier.A6. Requires: this worker has seen the round's decision applied (barrier.B6).
  void open(std::uint64_t round) noexcept;

  // Whether this rank's arrival was included in that round. Requires: this is barrier 0, the round is over, and the
  // rank has arrived at no later round.
  bool was_in(std::uint64_t round) const noexcept;

  // barrier.B12: tells the ranks that have left this one out that it takes part again. Requires: it has noticed that a
  // round went on without it. Wait-free.
  void come_back() noexcept;

  // How many of the job's workers have not joined yet. 0 after the end of the first round.
  std::uint32_t still_to_join() const noexcept;

  // barrier.A2 to barrier.A4. True: the round is decided, by this call or another one; at the user barrier, it is
  // over. `look_at_locks`: query the kernel for liveness, one system call for each missing rank. Otherwise only deaths
  // that are already known count.
  bool try_decide(std::uint64_t round, bool look_at_locks, std::vector<std::uint32_t>& missing);

  // Whether the round is decided. Helpers may be applying it, unless a later round is under way.
  bool is_decided(std::uint64_t round) const noexcept {
    return decided_rounds(shared().decision.load_acquire()) > round;  // (barrier.A5) pairs with barrier.A4
  }

  // barrier.A5. False: the round is over.
  bool read_decision(std::uint64_t round, Decision& decision) const noexcept;

 private:
  BarrierShm& shared() const noexcept { return job_.barrier(which_); }
  BarrierEntryShm& entry(std::uint32_t rank) const noexcept { return job_.worker(rank).barriers[which_]; }
  bool proposes(std::uint32_t proposer, std::uint32_t rank) const noexcept;
  void note_left_behind(std::uint64_t round, const RankSet& arrived) noexcept;
  void note_decision(std::uint64_t round) noexcept;

  // If each worker has a core, one of them checks all arrivals at every turn of its wait, the others at one turn in
  // kLookEvery. A check fetches the cache lines of the arriving workers, and two deciders at the same time take each
  // other's lines. The worker that checks at every turn is the last rank. It also applies the chunk of a step that has
  // only one (SyncWork), so it goes on from its own decision.
  static constexpr std::uint32_t kLookEvery = 16;

  JobSegments& job_;
  std::uint32_t rank_, which_;
  Patience patience_;
  std::uint32_t look_every_;            // all arrivals are checked at one of so many turns
  std::vector<std::uint32_t> missing_;  // of the current wait
  bool has_decided_ = false;            // this rank's proposal was chosen, which is not noted yet
  std::uint32_t quorum_ = 0;            // with which the proposal was made
  std::uint64_t known_ = 0;             // 1 + the last round whose decision this rank has read
  bool was_in_known_ = false;
  // A rank's entry when it was left out. The others wait for the rank again once its entry has changed.
  struct LeftOut {
    std::uint64_t published = 0, active_from = 0;
    bool is_set = false;
  };
  void propose(std::uint64_t round, const RankSet& set, const LiveSettings& settings) noexcept;
  LeftOut look_at(std::uint32_t rank) const noexcept;
  void leave_out(const std::vector<std::uint32_t>& missing) noexcept;
  bool is_left_out(std::uint32_t rank) const noexcept;

  std::vector<std::uint64_t> known_dead_;  // per rank: its last owner known to be dead
  std::vector<LeftOut> left_out_;          // per rank
};

}  // namespace ps_shm::shm
