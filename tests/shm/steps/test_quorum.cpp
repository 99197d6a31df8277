// The barrier with a quorum, step by step: which workers a round includes, which are too late, and what is reported.
#include <doctest/doctest.h>

#include <optional>
#include <vector>

#include "shm/segment/events.hpp"
#include "shm/segment/live_settings.hpp"
#include "support/rounds.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using namespace ps_shm::test;

namespace {

std::vector<EventRecord> events(const TestJob& job, EventKind kind) {
  std::vector<EventRecord> found = read_events(job.segments);
  std::erase_if(found, [kind](const EventRecord& event) { return event.kind != kind; });
  return found;
}

}  // namespace

TEST_CASE("barrier: a round closes with its quorum, and not before") {
  const TestJob job({.workers = 3, .mode = Mode::kSync, .quorum = 2});
  Member a(job), b(job), c(job);
  a.barrier.arrive(0);
  CHECK(decide(a, 0).missing == Ranks{1, 2});
  b.barrier.arrive(0);
  const Attempt attempt = decide(b, 0);
  CHECK(attempt.decided);
  CHECK(attempt.missing == Ranks{2});
  CHECK(contributors(c, 0) == Ranks{0, 1});
}

TEST_CASE("barrier: more workers than the quorum are included if they arrive before the decision") {
  const TestJob job({.workers = 4, .mode = Mode::kSync, .quorum = 2});
  Member a(job), b(job), c(job), d(job);
  for (Member* member : {&a, &b, &d}) member->barrier.arrive(0);
  CHECK(decide(d, 0).decided);
  CHECK(contributors(c, 0) == Ranks{0, 1, 3});
}

TEST_CASE("barrier: a quorum of one closes at once, a quorum of all waits for all") {
  for (const std::uint32_t quorum : {1U, 3U}) {
    CAPTURE(quorum);
    const TestJob job({.workers = 3, .mode = Mode::kSync, .quorum = quorum});
    Member a(job), b(job), c(job);
    a.barrier.arrive(0);
    CHECK(decide(a, 0).decided == (quorum == 1));
    b.barrier.arrive(0);
    CHECK(decide(b, 0).decided == (quorum == 1));
    c.barrier.arrive(0);
    CHECK(decide(c, 0).decided);
    CHECK(contributors(a, 0) == (quorum == 1 ? Ranks{0} : Ranks{0, 1, 2}));
  }
}

TEST_CASE("barrier: the first round waits for all workers to join, whatever the quorum") {
  const TestJob job({.workers = 3, .mode = Mode::kSync, .quorum = 1});
  Member a(job), b(job);
  a.barrier.arrive(0);
  CHECK_FALSE(decide(a, 0).decided);
  const Member c(job);
  CHECK(decide(a, 0).decided);
}

TEST_CASE("barrier: a worker that arrives too late is not included, and learns it when the round is over") {
  const TestJob job({.workers = 3, .mode = Mode::kSync, .quorum = 2});
  Member a(job), b(job), late(job);
  a.barrier.arrive(0);
  b.barrier.arrive(0);
  REQUIRE(decide(a, 0).decided);
  late.barrier.arrive(0);
  Ranks seen;
  const std::optional<Decision> decision = late.barrier.wait_decided(0, patient);
  REQUIRE(decision);
  for (const std::uint32_t rank : {0U, 1U, 2U})
    if (decision->contributors.contains(rank)) seen.push_back(rank);
  CHECK(seen == Ranks{0, 1});
  late.barrier.open(0);
  CHECK(late.barrier.round() == 1);
  CHECK_FALSE(late.barrier.was_in(0));
  CHECK(a.barrier.was_in(0));
  CHECK(b.barrier.was_in(0));
}

TEST_CASE("barrier: a worker that arrives at a finished round is neither in it nor in the next one") {
  const TestJob job({.workers = 3, .mode = Mode::kSync, .quorum = 2});
  Member a(job), b(job), late(job);
  a.barrier.arrive(0);
  pass(b, 0);
  late.barrier.arrive(0);
  CHECK_FALSE(late.barrier.wait_decided(0, patient));
  CHECK_FALSE(late.barrier.was_in(0));
  a.barrier.arrive(1);
  CHECK(decide(a, 1).missing == Ranks{1, 2});
  b.barrier.arrive(1);
  REQUIRE(decide(a, 1).decided);
  CHECK(contributors(a, 1) == Ranks{0, 1});
  complete(a.barrier, 1);
  CHECK_FALSE(late.barrier.was_in(0));
  CHECK_FALSE(late.barrier.was_in(1));
}

TEST_CASE("barrier: a worker that was dropped takes part again in the next round") {
  const TestJob job({.workers = 2, .mode = Mode::kSync, .quorum = 1});
  Member a(job), late(job);
  pass(a, 0);
  pass(late, 0);
  REQUIRE_FALSE(late.barrier.was_in(0));
  late.barrier.arrive(1);
  complete(late.barrier, 1);
  CHECK(late.barrier.was_in(1));
  CHECK(contributors(a, 1) == std::nullopt);
}

TEST_CASE("barrier: a helper that sleeps for rounds does not revoke a contribution") {
  const TestJob job({.workers = 2});
  Member a(job), b(job);
  a.barrier.arrive(0);
  b.barrier.arrive(0);
  REQUIRE(b.barrier.wait_decided(0, patient));
  complete(a.barrier, 0);  // b sleeps, and the others continue with round 0
  a.barrier.arrive(1);
  REQUIRE_FALSE(decide(a, 1).decided);
  b.barrier.open(0);
  CHECK(b.barrier.was_in(0));
  CHECK(a.barrier.was_in(0));
  CHECK(a.barrier.round() == 1);
}

TEST_CASE("barrier: fewer live workers than the quorum close a round together, and that is reported once") {
  const TestJob job({.workers = 3, .mode = Mode::kSync, .quorum = 3});
  Member a(job), b(job);
  { const Member dead(job); }
  for (std::uint64_t round = 0; round < 6; ++round) {
    a.barrier.arrive(round);
    CHECK(decide(a, round).missing == Ranks{1});
    b.barrier.arrive(round);
    REQUIRE(decide(a, round).decided);
    CHECK(contributors(a, round) == Ranks{0, 1});
    complete(a.barrier, round);
  }
  const auto told = events(job, EventKind::kShortQuorum);
  REQUIRE(told.size() == 1);
  CHECK(told[0].step == 0);
  CHECK(told[0].first == 2);
  CHECK(told[0].second == 3);
}

TEST_CASE("barrier: a short quorum is reported once, even if another worker decides the next round") {
  const TestJob job({.workers = 3, .mode = Mode::kSync, .quorum = 3});
  Member a(job), b(job);
  { const Member dead(job); }
  for (std::uint64_t round = 0; round < 6; ++round) {
    a.barrier.arrive(round);
    b.barrier.arrive(round);
    Member& decider = round % 2 == 0 ? a : b;
    REQUIRE(decide(decider, round).decided);
    complete(decider.barrier, round);
  }
  CHECK(events(job, EventKind::kShortQuorum).size() == 1);
}

TEST_CASE("barrier: a quorum that shrinks further, or recovers and shrinks again, is reported again") {
  const TestJob job({.workers = 3, .mode = Mode::kSync, .quorum = 3});
  Member a(job);
  std::optional<Member> b(std::in_place, job), c(std::in_place, job);
  const auto round = [&](std::vector<Member*> members) {
    const std::uint64_t number = a.barrier.round();
    for (Member* member : members) member->barrier.arrive(number);
    REQUIRE(decide(a, number).decided);
    complete(a.barrier, number);
  };
  round({&a, &*b, &*c});
  CHECK(events(job, EventKind::kShortQuorum).empty());
  c.reset();
  round({&a, &*b});
  round({&a, &*b});
  CHECK(events(job, EventKind::kShortQuorum).size() == 1);
  b.reset();
  round({&a});
  CHECK(events(job, EventKind::kShortQuorum).size() == 2);
  b.emplace(job, 1U);
  c.emplace(job, 2U);
  round({&a, &*b, &*c});
  b.reset();
  round({&a, &*c});
  CHECK(events(job, EventKind::kShortQuorum).size() == 3);
}

TEST_CASE("barrier: a worker of the quorum that dies before it publishes is replaced by another, or by nobody") {
  const TestJob job({.workers = 3, .mode = Mode::kSync, .quorum = 2});
  Member a(job);
  std::optional<Member> b(std::in_place, job);
  Member c(job);
  a.barrier.arrive(0);
  b.reset();
  CHECK(decide(a, 0).missing == Ranks{2});  // one has published, one live worker is missing
  c.barrier.arrive(0);
  CHECK(decide(a, 0).decided);
  CHECK(contributors(a, 0) == Ranks{0, 2});
  CHECK(events(job, EventKind::kShortQuorum).empty());
}

TEST_CASE("barrier: a worker of the quorum that dies after it published is included") {
  const TestJob job({.workers = 3, .mode = Mode::kSync, .quorum = 2});
  Member a(job), b(job);
  {
    Member dead(job);
    dead.barrier.arrive(0);
  }
  a.barrier.arrive(0);
  CHECK(decide(a, 0).decided);
  CHECK(contributors(a, 0) == Ranks{0, 2});
}

TEST_CASE("barrier: without arrivals, dead workers alone do not close a round") {
  const TestJob job({.workers = 2, .mode = Mode::kSync, .quorum = 1});
  Member a(job);
  { const Member dead(job); }
  CHECK_FALSE(decide(a, 0).decided);
  CHECK(events(job, EventKind::kDecided).empty());
}

TEST_CASE("barrier: a quorum applies to training steps only") {
  const TestJob job({.workers = 2, .mode = Mode::kSync, .quorum = 1});
  Member a(job, {}, 1), b(job, {}, 1);
  a.barrier.arrive(0);
  const auto alone = decide(a, 0);
  CHECK(alone.missing == Ranks{1});
  CHECK_FALSE(alone.decided);
  b.barrier.arrive(0);
  CHECK(decide(a, 0).decided);
  CHECK(events(job, EventKind::kDecided).empty());
}

TEST_CASE("barrier: a live change of the quorum applies to the waiting round") {
  TestJob job({.workers = 3, .mode = Mode::kSync, .quorum = 0});
  Member a(job), b(job), c(job);
  a.barrier.arrive(0);
  b.barrier.arrive(0);
  REQUIRE_FALSE(decide(a, 0).decided);
  REQUIRE(try_change_live(job.segments, [](LiveSettings& settings) { settings.quorum = 2; }));
  CHECK(decide(a, 0).decided);
  CHECK(contributors(c, 0) == Ranks{0, 1});
}

TEST_CASE("barrier: a decision carries the runtime settings of its moment, for all helpers alike") {
  JobConfig config =
      config_of({.workers = 2, .mode = Mode::kSync, .quorum = 0, .optimizer = {.lr = 0.5F, .momentum = 0.5F}});
  config.optimizer.beta1 = 0.75F;
  TestJob job(config);
  Member a(job), b(job);
  a.barrier.arrive(0);
  b.barrier.arrive(0);
  REQUIRE(decide(a, 0).decided);
  REQUIRE(try_change_live(job.segments, [](LiveSettings& settings) {
    settings.lr = 0.25F;
    settings.clip_norm = 3;
    settings.momentum = 0.25F;
    settings.beta1 = 0.125F;
  }));
  Decision first, second;
  REQUIRE(b.barrier.read_decision(0, first));
  CHECK(first.lr == 0.5F);
  CHECK(first.clip_norm == 0);
  CHECK(first.momentum == 0.5F);
  CHECK(first.beta1 == 0.75F);
  complete(a.barrier, 0);
  a.barrier.arrive(1);
  b.barrier.arrive(1);
  REQUIRE(decide(b, 1).decided);
  REQUIRE(a.barrier.read_decision(1, second));
  CHECK(second.lr == 0.25F);
  CHECK(second.clip_norm == 3);
  CHECK(second.momentum == 0.25F);
  CHECK(second.beta1 == 0.125F);
}

TEST_CASE("barrier: each step's decision is one event with its contributors") {
  const TestJob job({.workers = 3, .mode = Mode::kSync, .quorum = 2});
  Member a(job), b(job), c(job);
  for (std::uint64_t round = 0; round < 20; ++round) {
    Member& first = round % 3 == 0 ? a : b;
    Member& second = round % 3 == 1 ? a : c;
    first.barrier.arrive(round);
    second.barrier.arrive(round);
    REQUIRE(decide(second, round).decided);
    REQUIRE(decide(first, round).decided);
    complete(first.barrier, round);
    complete(second.barrier, round);
  }
  const auto decided = events(job, EventKind::kDecided);
  REQUIRE(decided.size() == 20);
  for (std::uint64_t round = 0; round < 20; ++round) {
    const Ranks expected = round % 3 == 0 ? Ranks{0, 2} : round % 3 == 1 ? Ranks{0, 1} : Ranks{1, 2};
    CHECK(decided[round].step == round);
    CHECK(decided[round].ranks.size() == 2);
    for (const std::uint32_t rank : expected) CHECK(decided[round].ranks.contains(rank));
  }
}

TEST_CASE("barrier: a decision is one event, also of a worker that gave up while applying it and comes back") {
  const TestJob job({.workers = 2, .mode = Mode::kSync, .quorum = 0});
  Member a(job), b(job);
  a.barrier.arrive(0);
  b.barrier.arrive(0);
  REQUIRE(a.barrier.wait_decided(0, patient));
  SUBCASE("to a round that is over") { complete(b.barrier, 0); }
  SUBCASE("to a round that is not") {}
  complete(a.barrier, 0);
  CHECK(a.barrier.round() == 1);
  CHECK(events(job, EventKind::kDecided).size() == 1);
}
