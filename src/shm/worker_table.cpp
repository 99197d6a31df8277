#include "shm/worker_table.hpp"

#include <unistd.h>

#include <ctime>

#include "shm/events.hpp"
#include "shm/futex.hpp"

namespace ps::shm {
namespace {

bool take(JobSegments& job, std::uint32_t rank) { return job.locks().try_take(kRankByte + rank); }

std::optional<std::uint32_t> take_free(JobSegments& job) {
  constexpr WorkerState kPreference[] = {WorkerState::kNever, WorkerState::kDead, WorkerState::kLeft};
  for (const WorkerState wanted : kPreference)
    for (std::uint32_t rank = 0; rank < job.ranks(); ++rank)
      if (worker_state(job, rank) == wanted && take(job, rank)) return rank;
  return std::nullopt;
}

}  // namespace

std::uint64_t now_ns() noexcept {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

JoinOutcome try_join(JobSegments& job, std::optional<std::uint32_t> wanted, std::uint32_t& rank,
                     const std::function<void()>& check) {
  if (job.locks().is_being_removed()) return JoinOutcome::kJobRemoved;
  if (wanted) {
    if (!take(job, *wanted)) return job.locks().is_being_removed() ? JoinOutcome::kJobRemoved : JoinOutcome::kRankTaken;
    rank = *wanted;
  } else {
    const std::optional<std::uint32_t> taken = take_free(job);
    if (!taken) return job.locks().is_being_removed() ? JoinOutcome::kJobRemoved : JoinOutcome::kTableFull;
    rank = *taken;
  }
  if (job.is_orphaned()) {  // N3
    job.locks().release(kRankByte + rank);
    return JoinOutcome::kJobRemoved;
  }
  try {
    if (check) check();
  } catch (...) {
    job.locks().release(kRankByte + rank);
    throw;
  }
  fault_point(FaultPoint::kJoinTaken);
  WorkerShm& entry = job.worker(rank);
  entry.pid.store_relaxed(static_cast<std::uint32_t>(getpid()));
  entry.waiting_for.store_relaxed(static_cast<std::uint32_t>(WaitingFor::kNothing));
  entry.joined_ns.store_relaxed(now_ns());
  for (std::uint32_t which = 0; which < kBarriers; ++which) {  // B1; before `holders`, which makes deciders look at it
    const std::uint64_t round = job.barrier(which).step.load_acquire();
    entry.barriers[which].active_from.store_release(round == 0 ? 0 : round + 1);
    fault_point(FaultPoint::kJoinBarrier);
  }
  entry.clock.store_relaxed(0);  // no epoch: counts only once it is entered
  fault_point(FaultPoint::kJoinWritten);
  entry.holders.store_release(entry.holders.load_relaxed() + 1);  // pairs with the deciders' acquire
  fault_point(FaultPoint::kJoinCounted);
  entry.state.store_release(static_cast<std::uint32_t>(RankState::kJoined));
  fault_point(FaultPoint::kJoinStated);
  record_event(job, {.kind = EventKind::kJoined,
                     .rank = rank,
                     .step = job.global_step().load_acquire(),
                     .first = entry.pid.load_relaxed()});
  fault_point(FaultPoint::kJoinRecorded);
  futex_announce(job.state().activity);
  return JoinOutcome::kJoined;
}

void leave(JobSegments& job, std::uint32_t rank) noexcept {
  WorkerShm& entry = job.worker(rank);
  entry.left_ns.store_relaxed(now_ns());
  entry.waiting_for.store_relaxed(static_cast<std::uint32_t>(WaitingFor::kNothing));
  fault_point(FaultPoint::kLeaveWritten);
  entry.state.store_release(static_cast<std::uint32_t>(RankState::kLeft));  // after `published`: who sees it sees that
  fault_point(FaultPoint::kLeaveStated);
  record_event(job, {.kind = EventKind::kLeft, .rank = rank, .step = job.global_step().load_acquire()});
  fault_point(FaultPoint::kLeaveRecorded);
  for (std::uint32_t which = 0; which < kBarriers; ++which) futex_announce(job.barrier(which).futex);
  futex_announce(job.state().clocks);
  futex_announce(job.state().activity);
  fault_point(FaultPoint::kLeaveAnnounced);
  job.locks().release(kRankByte + rank);  // L5: last
  fault_point(FaultPoint::kLeaveReleased);
}

WorkerState worker_state(const JobSegments& job, std::uint32_t rank, std::optional<std::uint32_t> own) noexcept {
  const WorkerShm& entry = job.worker(rank);
  if (entry.holders.load_acquire() == 0) return WorkerState::kNever;
  if (static_cast<RankState>(entry.state.load_acquire()) == RankState::kLeft) return WorkerState::kLeft;
  if (own == rank || job.is_alive(rank)) return WorkerState::kAlive;
  // Dead, unless it left between the two looks.
  return static_cast<RankState>(entry.state.load_acquire()) == RankState::kLeft ? WorkerState::kLeft
                                                                                : WorkerState::kDead;
}

}  // namespace ps::shm
