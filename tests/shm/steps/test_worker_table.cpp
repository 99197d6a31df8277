// Joining and leaving: which rank a worker gets, and what has become of each owner.
#include <doctest/doctest.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <vector>

#include "shm/steps/worker_table.hpp"
#include "support/processes.hpp"
#include "support/test_job.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::TestJob;

namespace {

// A worker with its own attachment; it dies with its object, without leaving.
struct Member {
  JobSegments segments;
  std::uint32_t rank = ~0U;
  JoinOutcome outcome;
  explicit Member(const TestJob& job, std::optional<std::uint32_t> wanted = {})
      : segments(job.attach()), outcome(try_join(segments, wanted, rank)) {}
};

}  // namespace

TEST_CASE("joining: the first worker gets rank 0 and is alive to others") {
  const TestJob job;
  const Member member(job);
  CHECK(member.outcome == JoinOutcome::kJoined);
  CHECK(member.rank == 0);
  CHECK(worker_state(job.segments, 0) == WorkerState::kAlive);
  CHECK(worker_state(job.segments, 1) == WorkerState::kNever);
  CHECK(job.segments.worker(0).pid.load_relaxed() == std::uint32_t(getpid()));
}

TEST_CASE("joining: a worker knows that it is alive itself, though its locks cannot tell") {
  const TestJob job;
  const Member member(job);
  CHECK(worker_state(member.segments, 0, 0) == WorkerState::kAlive);
}

TEST_CASE("joining: a requested rank is given") {
  const TestJob job;
  CHECK(Member(job, 7).rank == 7);
}

TEST_CASE("joining: a requested rank that is alive is refused, and its entry is unchanged") {
  const TestJob job;
  const Member first(job, 7);
  CHECK(Member(job, 7).outcome == JoinOutcome::kRankTaken);
  CHECK(job.segments.worker(7).holders.load_acquire() == 1);
}

TEST_CASE("joining: a requested rank whose owner is dead is given") {
  const TestJob job;
  { const Member dead(job, 7); }
  REQUIRE(worker_state(job.segments, 7) == WorkerState::kDead);
  const Member successor(job, 7);
  CHECK(successor.rank == 7);
  CHECK(job.segments.worker(7).holders.load_acquire() == 2);
  CHECK(worker_state(job.segments, 7) == WorkerState::kAlive);
}

TEST_CASE("joining: a push during which the rank's last owner died is over (snapshot.C7)") {
  const TestJob job;
  {
    const Member dead(job, 7);
    job.segments.worker(7).pushing.store_release(1);
  }
  const Member successor(job, 7);
  CHECK(job.segments.worker(7).pushing.load_acquire() == 0);
}

TEST_CASE("joining: ranks never used come first, then a dead one's, then one that was left") {
  const TestJob job({.max_workers = 4});
  Member left(job, 0);
  leave(left.segments, 0);
  { const Member dead(job, 1); }
  const Member alive(job, 2);
  const Member next(job), after(job), last(job), none(job);
  CHECK(next.rank == 3);
  CHECK(after.rank == 1);
  CHECK(last.rank == 0);
  CHECK(none.outcome == JoinOutcome::kTableFull);
}

TEST_CASE("joining: before the first round a worker takes part from it on, later from the round after next") {
  const TestJob job;
  const Member early(job);
  job.segments.barrier(0).step.store_release(5);
  const Member late(job);
  CHECK(job.segments.worker(early.rank).barriers[0].active_from.load_acquire() == 0);
  CHECK(job.segments.worker(late.rank).barriers[0].active_from.load_acquire() == 6);
  CHECK(job.segments.worker(late.rank).barriers[1].active_from.load_acquire() == 0);
}

TEST_CASE("joining: a job that has been removed accepts nobody, and no byte stays taken") {
  const TestJob job;
  JobSegments attached = job.attach(), other = job.attach();
  REQUIRE(remove_job(job.name.text(), job.segments.control().descriptor()) == RemoveOutcome::kRemoved);
  std::uint32_t rank;
  CHECK(try_join(attached, {}, rank) == JoinOutcome::kJobRemoved);
  CHECK(try_join(attached, 3, rank) == JoinOutcome::kJobRemoved);
  CHECK_FALSE(other.locks().is_any_rank_held_by_other());
}

TEST_CASE("joining: a job that is being removed accepts nobody") {
  const TestJob job;
  const JobSegments remover = job.attach();
  job.segments.locks().release(kTaskByte);
  REQUIRE(remover.locks().try_take_all());
  CHECK(Member(job).outcome == JoinOutcome::kJobRemoved);
  CHECK(Member(job, 3).outcome == JoinOutcome::kJobRemoved);
}

TEST_CASE("leaving: the rank was left, not dead, and is free") {
  const TestJob job;
  Member member(job);
  leave(member.segments, member.rank);
  CHECK(worker_state(job.segments, member.rank) == WorkerState::kLeft);
  CHECK_FALSE(job.segments.is_alive(member.rank));
}

TEST_CASE("leaving: a rank that is taken again is alive again") {
  const TestJob job;
  Member member(job, 2);
  leave(member.segments, 2);
  const Member next(job, 2);
  CHECK(next.outcome == JoinOutcome::kJoined);
  CHECK(worker_state(job.segments, 2) == WorkerState::kAlive);
}

TEST_CASE("joining: processes that join at once each get a rank") {
  constexpr std::uint32_t kWorkers = 8;
  const TestJob job({.max_workers = kWorkers});
  const test::Bell go, joined, end;
  std::vector<std::unique_ptr<test::Child>> children;
  for (std::uint32_t i = 0; i < kWorkers; ++i)
    children.push_back(std::make_unique<test::Child>([&] {
      if (!go.hear()) return 2;
      const Member member(job);
      joined.tell();
      return end.hear() && member.outcome == JoinOutcome::kJoined ? int(member.rank) + 10 : 1;
    }));
  for (std::uint32_t i = 0; i < kWorkers; ++i) go.tell();
  for (std::uint32_t i = 0; i < kWorkers; ++i) CHECK(joined.hear());
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank) CHECK(worker_state(job.segments, rank) == WorkerState::kAlive);
  for (std::uint32_t i = 0; i < kWorkers; ++i) end.tell();
  std::vector<bool> taken(kWorkers);
  for (auto& child : children) {
    const int code = child->join();
    REQUIRE(code >= 10);
    CHECK_FALSE(taken[std::size_t(code) - 10]);
    taken[std::size_t(code) - 10] = true;
  }
}
