#include "shm/steps/worker_table.hpp"

#include <unistd.h>

#include "shm/base/clock.hpp"
#include "shm/base/futex.hpp"
#include "shm/segment/events.hpp"
#include "shm/steps/gpu_note.hpp"
#include "shm/steps/guest.hpp"

namespace ps_shm::shm {
namespace {

bool take(JobSegments& job, std::uint32_t rank) { return job.locks().try_take(kRankByte + rank); }

std::optional<std::uint32_t> take_free(JobSegments& job) {
  constexpr WorkerState kPreference[] = {WorkerState::kNever, WorkerState::kDead, WorkerState::kLeft};
  const auto try_take = [&](WorkerState wanted, bool of_guest) -> std::optional<std::uint32_t> {
    for (std::uint32_t rank = 0; rank < job.ranks(); ++rank)
      if (worker_state(job, rank) == wanted && is_guest(job.worker(rank)) == of_guest && take(job, rank)) return rank;
    return std::nullopt;
  };
  for (const WorkerState wanted : kPreference)
    if (const auto taken = try_take(wanted, false)) return taken;
  return try_take(WorkerState::kNever, true);  // a guest may come back
}

}  // namespace

JoinOutcome try_join(JobSegments& job, std::optional<std::uint32_t> wanted, std::uint32_t& rank,
                     const std::function<void()>& check, Membership membership) {
  // In this order: a remover removes the name before it releases the bytes.
  const auto is_removed = [&] { return job.locks().is_being_removed() || job.is_orphaned(); };
  if (job.locks().is_being_removed()) return JoinOutcome::kJobRemoved;
  if (wanted) {
    if (!take(job, *wanted)) return is_removed() ? JoinOutcome::kJobRemoved : JoinOutcome::kRankTaken;
    rank = *wanted;
  } else {
    const std::optional<std::uint32_t> taken = take_free(job);
    if (!taken) return is_removed() ? JoinOutcome::kJobRemoved : JoinOutcome::kTableFull;
    rank = *taken;
  }
  if (job.is_orphaned()) {  // names.N3
    job.locks().release(kRankByte + rank);
    return JoinOutcome::kJobRemoved;
  }
  try {
    if (check) check();
  } catch (...) {
    job.locks().release(kRankByte + rank);
    remove_if_ended(job);  // names.N9
    throw;
  }
  fault_point(FaultPoint::kJoinTaken);
  WorkerShm& entry = job.worker(rank);
  entry.pid.store_relaxed(static_cast<std::uint32_t>(getpid()));  // relaxed, as all to `holders`: ranks.J1 publishes it
  entry.guest.store_relaxed(membership == Membership::kGuest ? 1 : 0);
  entry.waiting_for.store_relaxed(static_cast<std::uint32_t>(WaitingFor::kNothing));
  forget_gpu(entry);
  entry.joined_ns.store_relaxed(now_ns());
  for (std::uint32_t which = 0; which < kBarriers; ++which) {            // ranks.J1: before deciders see this owner
    const std::uint64_t round = job.barrier(which).step.load_acquire();  // (barrier.A6)
    entry.barriers[which].active_from.store_release(                     // (barrier.B1) pairs with barrier.A2
        round == job.first_round(which) ? round : round + 1);
    fault_point(FaultPoint::kJoinBarrier);
  }
  entry.clock.store_relaxed(0);  // no epoch: it counts only after enter()
  entry.push_ns.store_relaxed(0);
  entry.pushing.store_release(0);  // (snapshot.C7) a dead owner's push is over
  fault_point(FaultPoint::kJoinWritten);
  entry.holders.store_release(entry.holders.load_relaxed() + 1);  // (ranks.J1) pairs with ranks.J4
  fault_point(FaultPoint::kJoinCounted);
  entry.state.store_release(static_cast<std::uint32_t>(RankState::kJoined));  // (ranks.J2)
  fault_point(FaultPoint::kJoinStated);
  if (membership == Membership::kWorker)
    record_event(
        job, {.kind = EventKind::kJoined, .rank = rank, .step = job.steps_done(), .first = entry.pid.load_relaxed()});
  fault_point(FaultPoint::kJoinRecorded);
  futex_announce(job.state().activity);
  return JoinOutcome::kJoined;
}

void leave(JobSegments& job, std::uint32_t rank) noexcept {
  WorkerShm& entry = job.worker(rank);
  entry.left_ns.store_relaxed(now_ns());
  entry.waiting_for.store_relaxed(static_cast<std::uint32_t>(WaitingFor::kNothing));
  fault_point(FaultPoint::kLeaveWritten);
  entry.state.store_release(static_cast<std::uint32_t>(RankState::kLeft));  // (ranks.J3) after `published`
  fault_point(FaultPoint::kLeaveStated);
  if (!is_guest(entry)) record_event(job, {.kind = EventKind::kLeft, .rank = rank, .step = job.steps_done()});
  fault_point(FaultPoint::kLeaveRecorded);
  for (std::uint32_t which = 0; which < kBarriers; ++which) futex_announce(job.barrier(which).futex);
  futex_announce(job.state().clocks);
  futex_announce(job.state().activity);
  fault_point(FaultPoint::kLeaveAnnounced);
  job.locks().release(kRankByte + rank);  // locks.L5: last
  fault_point(FaultPoint::kLeaveReleased);
  remove_if_ended(job);  // names.N9
}

WorkerState worker_state(const JobSegments& job, std::uint32_t rank, std::optional<std::uint32_t> own) noexcept {
  const WorkerShm& entry = job.worker(rank);
  const auto has_left = [&] {
    return static_cast<RankState>(entry.state.load_acquire()) == RankState::kLeft;  // (ranks.J4) pairs with ranks.J3
  };
  if (entry.holders.load_acquire() == 0) return WorkerState::kNever;  // (ranks.J4) pairs with ranks.J1
  if (is_guest(entry)) return WorkerState::kNever;
  if (has_left()) return WorkerState::kLeft;
  if (own == rank || job.is_alive(rank)) return WorkerState::kAlive;
  return has_left() ? WorkerState::kLeft : WorkerState::kDead;  // it may have left between the two reads
}

}  // namespace ps_shm::shm
