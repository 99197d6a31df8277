// The barrier step by step: which workers a round waits for and includes, and what a stale or new owner of a rank may
// change.
#include <doctest/doctest.h>

#include <optional>
#include <stdexcept>

#include "shm/steps/snapshot_point.hpp"
#include "support/rounds.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using namespace ps_shm::test;

TEST_CASE("barrier: a round is decided once all live workers have arrived") {
  const TestJob job;
  Member a(job), b(job);
  a.barrier.arrive(0);
  const Attempt early = decide(a, 0);
  CHECK_FALSE(early.decided);
  CHECK(early.missing == Ranks{1});
  CHECK_FALSE(contributors(a, 0));
  b.barrier.arrive(0);
  CHECK(decide(a, 0).decided);
  CHECK(contributors(b, 0) == Ranks{0, 1});
}

TEST_CASE("barrier: a worker that has left is not waited for, even without checking the locks") {
  const TestJob job;
  Member a(job), b(job);
  b.leave();
  a.barrier.arrive(0);
  CHECK(decide(a, 0, false).decided);
  CHECK(contributors(a, 0) == Ranks{0});
}

TEST_CASE("barrier: a dead worker is not waited for, after one check of the locks") {
  const TestJob job;
  Member a(job);
  { const Member dead(job); }
  a.barrier.arrive(0);
  CHECK(decide(a, 0, false).missing == Ranks{1});
  CHECK(decide(a, 0, true).decided);
  complete(a.barrier, 0);
  a.barrier.arrive(1);
  CHECK(decide(a, 1, false).decided);  // known from the first check
}

TEST_CASE("barrier: a worker that has arrived and then died or left is in the round") {
  const TestJob job;
  Member a(job);
  {
    Member dead(job);
    dead.barrier.arrive(0);
  }
  Member left(job, 2);
  left.barrier.arrive(0);
  left.leave();
  a.barrier.arrive(0);
  CHECK(decide(a, 0).decided);
  CHECK(contributors(a, 0) == Ranks{0, 1, 2});
}

TEST_CASE("barrier: the first round waits until as many workers have joined as the job has") {
  const TestJob job({.workers = 3});
  Member a(job), b(job);
  a.barrier.arrive(0);
  b.barrier.arrive(0);
  CHECK_FALSE(decide(a, 0).decided);
  CHECK(a.barrier.still_to_join() == 1);
  Member c(job);
  CHECK(a.barrier.still_to_join() == 0);
  CHECK(decide(a, 0).missing == Ranks{2});
  c.barrier.arrive(0);
  CHECK(decide(a, 0).decided);
}

TEST_CASE("barrier: in the first round, a worker that joined and died counts as joined") {
  const TestJob job({.workers = 2});
  Member a(job);
  { const Member dead(job); }
  a.barrier.arrive(0);
  CHECK(decide(a, 0).decided);
  CHECK(contributors(a, 0) == Ranks{0});
}

TEST_CASE("barrier: a later round does not wait for workers that have never joined") {
  const TestJob job({.workers = 4});
  job.segments.barrier(0).step.store_release(1);
  Member a(job);
  a.barrier.arrive(1);
  CHECK(decide(a, 1).decided);
}

TEST_CASE("barrier: a worker that joins during a round is waited for from the next round on") {
  const TestJob job;
  Member a(job);
  pass(a, 0);
  const Member late(job);
  a.barrier.arrive(1);
  CHECK(decide(a, 1).decided);
  complete(a.barrier, 1);
  a.barrier.arrive(2);
  CHECK(decide(a, 2).missing == Ranks{1});
}

TEST_CASE("barrier: a new owner of a dead worker's rank is waited for from the next round on") {
  const TestJob job;
  Member a(job);
  {
    Member dead(job);
    dead.barrier.arrive(0);
    pass(a, 0);
  }
  a.barrier.arrive(1);
  REQUIRE(decide(a, 1).decided);
  const Member successor(job, 1);
  complete(a.barrier, 1);
  a.barrier.arrive(2);
  CHECK(decide(a, 2).missing == Ranks{1});
}

TEST_CASE("barrier: no round is decided at which nobody has arrived") {
  const TestJob job;
  Member a(job);
  CHECK(decide(a, 0).missing == Ranks{0});
  pass(a, 0);
  a.leave();
  Member late(job);  // not part of round 1, and has not arrived at it
  const Attempt decision = decide(late, 1);
  CHECK_FALSE(decision.decided);
  CHECK(decision.missing.empty());
}

TEST_CASE("barrier: the first decision is final, whoever decides later") {
  const TestJob job;
  Member a(job);
  a.barrier.arrive(0);
  REQUIRE(decide(a, 0).decided);
  Member b(job);
  b.barrier.arrive(0);
  CHECK(decide(b, 0).decided);
  CHECK(contributors(b, 0) == Ranks{0});
}

TEST_CASE("barrier: a new owner sees that its predecessor has arrived, until the round is over") {
  const TestJob job;
  Member a(job);
  {
    Member dead(job);
    dead.barrier.arrive(0);
  }
  const Member successor(job, 1);
  CHECK(successor.barrier.has_arrived(successor.barrier.round()));
  pass(a, 0);
  CHECK_FALSE(successor.barrier.has_arrived(successor.barrier.round()));
}

TEST_CASE("barrier: a new owner adopts its predecessor's proposal for the round unchanged") {
  const TestJob job;
  Member a(job), b(job);
  a.barrier.arrive(0);
  b.barrier.arrive(0);
  BarrierEntryShm& mine = job.segments.worker(0).barriers[0];
  mine.proposed.bits[0].store_relaxed(2);  // rank 1 alone, proposed by a predecessor killed before the decision
  mine.proposal.store_release(1);
  CHECK(decide(a, 0).decided);
  CHECK(contributors(b, 0) == Ranks{1});
}

TEST_CASE("barrier: a proposal for an earlier round is replaced") {
  const TestJob job;
  Member a(job), b(job);
  BarrierEntryShm& mine = job.segments.worker(0).barriers[0];
  mine.proposed.bits[0].store_relaxed(~std::uint64_t{0});
  mine.proposal.store_release(1);
  job.segments.barrier(0).step.store_release(3);
  a.barrier.arrive(3);
  b.barrier.arrive(3);
  CHECK(decide(a, 3).decided);
  CHECK(contributors(b, 3) == Ranks{0, 1});
}

TEST_CASE("barrier: a stalled decider does not move the decision backwards") {
  const TestJob job;
  Member a(job);
  a.barrier.arrive(3);
  const std::uint64_t later = make_decision(6, 0, 5);
  job.segments.barrier(0).decision.store_release(later);
  CHECK(decide(a, 3).decided);
  CHECK(job.segments.barrier(0).decision.load_acquire() == later);
}

TEST_CASE("barrier: a decision is not read once its round is over") {
  const TestJob job;
  Member a(job);
  a.barrier.arrive(0);
  REQUIRE(decide(a, 0).decided);
  REQUIRE(contributors(a, 0));
  job.segments.barrier(0).step.store_release(1);
  CHECK_FALSE(contributors(a, 0));
}

TEST_CASE("barrier: a worker that has waited for the decision applies it and opens the next round") {
  const TestJob job;
  Member a(job);
  a.barrier.arrive(0);
  const std::optional<Decision> decision = a.barrier.wait_decided(0, patient);
  REQUIRE(decision);
  CHECK(decision->contributors.contains(0));
  CHECK(a.barrier.round() == 0);
  a.barrier.open(0);
  CHECK(a.barrier.round() == 1);
}

TEST_CASE("barrier: a finished round is not applied again") {
  const TestJob job;
  Member a(job), b(job);
  a.barrier.arrive(0);
  b.barrier.arrive(0);
  complete(a.barrier, 0);
  CHECK_FALSE(b.barrier.wait_decided(0, patient));
  CHECK(b.barrier.round() == 1);
}

TEST_CASE("barrier: a waiting worker is told in each slice which workers are missing, and may give up") {
  const TestJob job;
  Member a(job), b(job);
  a.barrier.arrive(0);
  Ranks told;
  const auto give_up = [&](const Ranks& missing) -> bool {
    told = missing;
    throw std::runtime_error("deadline");
  };
  CHECK_THROWS_AS(complete(a.barrier, 0, give_up), std::runtime_error);
  CHECK(told == Ranks{1});
  CHECK(a.barrier.round() == 0);
}

TEST_CASE("barrier: a death during the wait ends it") {
  const TestJob job;
  Member a(job);
  std::optional<Member> b(std::in_place, job);
  a.barrier.arrive(0);
  complete(a.barrier, 0, [&](const Ranks&) {
    b.reset();
    return false;
  });
  CHECK(a.barrier.round() == 1);
}

TEST_CASE("barrier: a worker that gives up while applying leaves the round to the others") {
  const TestJob job;
  Member a(job), b(job);
  a.barrier.arrive(0);
  b.barrier.arrive(0);
  REQUIRE(a.barrier.wait_decided(0, patient));
  CHECK(a.barrier.round() == 0);
  complete(b.barrier, 0);
  CHECK(b.barrier.round() == 1);
}

TEST_CASE("barrier: the job's two barriers are independent of each other") {
  const TestJob job;
  Member steps(job), meeting(job, {}, 1);
  meeting.barrier.arrive(0);
  CHECK(decide(meeting, 0).missing == Ranks{0});
  CHECK(decide(steps, 0).missing == Ranks{0, 1});
}

TEST_CASE("barrier: a user barrier is over once all have arrived, without a decision") {
  const TestJob job({.workers = 2});
  Member a(job, {}, 1), b(job, {}, 1);
  a.barrier.arrive(0);
  CHECK_FALSE(decide(a, 0).decided);
  b.barrier.arrive(0);
  CHECK(decide(a, 0).decided);
  CHECK(b.barrier.round() == 1);
  CHECK_FALSE(contributors(b, 0));
  CHECK(job.segments.barrier(1).decision.load_acquire() == 0);
}

TEST_CASE("barrier: a worker that checks after the round is over learns whether it was included (barrier.B11)") {
  const TestJob job({.workers = 3, .mode = Mode::kSync, .quorum = 2});
  Member a(job), b(job), late(job);
  a.barrier.arrive(0);
  bool is_in = false;
  SUBCASE("included") {
    late.barrier.arrive(0);
    is_in = true;
  }
  SUBCASE("too late") {
    b.barrier.arrive(0);
    REQUIRE(decide(a, 0).decided);
    late.barrier.arrive(0);
  }
  complete(a.barrier, 0);
  CHECK(late.barrier.was_in(0) == is_in);
  for (std::uint64_t round = 1; round < 4; ++round) {  // the others continue
    for (Member* one : {&a, &b}) one->barrier.arrive(round);
    Member& decider = round % 2 == 1 ? a : b;
    complete(decider.barrier, round);
    CHECK(late.barrier.was_in(0) == is_in);
    CHECK_FALSE(late.barrier.was_in(round));
    CHECK(a.barrier.was_in(round));
  }
}

TEST_CASE("barrier: snapshot points move their epoch between two steps, not while one is applied (snapshot.C10)") {
  TestJob job;
  Member a(job);
  CHECK(try_set_epoch(job.segments, 1) == 0);
  a.barrier.arrive(0);
  REQUIRE(decide(a, 0).decided);
  const std::uint64_t decision = job.segments.barrier(0).decision.load_acquire();
  CHECK_FALSE(try_set_epoch(job.segments, 2));
  CHECK(job.segments.barrier(0).decision.load_acquire() == decision);
  complete(a.barrier, 0);
  CHECK(try_set_epoch(job.segments, 2) == 1);
  a.barrier.arrive(1);
  REQUIRE(decide(a, 1).decided);
  CHECK(epoch_bits(job.segments.barrier(0).decision.load_acquire()) == 2);
}

TEST_CASE("barrier: the decision of a step for which a snapshotter has ordered it gets the new epoch (snapshot.C12)") {
  TestJob job;
  Member a(job);
  SnapshotPointShm& point = job.segments.state().snapshot_point;
  const auto decided_epoch = [&](std::uint64_t round) {
    a.barrier.arrive(round);
    REQUIRE(decide(a, round).decided);
    Decision decision;
    REQUIRE(a.barrier.read_decision(round, decision));
    complete(a.barrier, round);
    return decision.epoch;
  };
  point.word.store_relaxed(make_snapshot_word(5, SnapshotState::kOpen));
  point.at_step.store_relaxed(1 + 2);
  CHECK(decided_epoch(0) == 0);
  CHECK(decided_epoch(1) == 0);
  CHECK(decided_epoch(2) == 5);
  CHECK(decided_epoch(3) == 5);
  point.word.store_relaxed(make_snapshot_word(6, SnapshotState::kOpen));
  CHECK(decided_epoch(4) == 5);
}

TEST_CASE("barrier: while a step is applied, no ordered snapshot point is taken for made (snapshot.C12)") {
  TestJob job;
  Member a(job);
  a.barrier.arrive(0);
  REQUIRE(decide(a, 0).decided);  // and nobody applies it
  SnapshotPointMaker maker(job.segments);
  int made = 0;
  for (const std::uint64_t step : {1'000'000, 0})  // still to come, and decided before the order
    for (std::uint64_t order = 0; order < kDecisionEpoch + 2; ++order)
      made += maker.before_step(step, [] { return true; }).has_value();
  CHECK(made == 0);
}

TEST_CASE("barrier: a worker that was left out is waited for from the round for which it shows itself (barrier.B12)") {
  const TestJob job({.workers = 2});
  Member a(job), late(job);
  const auto go_on = [](const Ranks&) { return true; };
  a.barrier.arrive(0);
  late.barrier.arrive(0);
  complete(a.barrier, 0);
  a.barrier.arrive(1);
  complete(a.barrier, 1, go_on);
  REQUIRE(a.barrier.round() == 2);
  pass(a, 2);  // without waiting for it
  SUBCASE("by showing itself without arriving") { late.barrier.come_back(); }
  SUBCASE("by arriving") {
    late.barrier.arrive(3);
    pass(a, 3);
    CHECK(late.barrier.was_in(3));
  }
  SUBCASE("by arriving too late") { late.barrier.arrive(1); }
  const std::uint64_t round = a.barrier.round();
  a.barrier.arrive(round);
  const Attempt attempt = decide(a, round);
  CHECK_FALSE(attempt.decided);
  CHECK(attempt.missing == Ranks{1});
}
