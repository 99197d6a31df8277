// Bounded staleness step by step: which clocks count, where a newcomer starts, and what wakes a waiting worker.
#include <doctest/doctest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "shm/base/futex.hpp"
#include "shm/steps/ssp_clock.hpp"
#include "support/manual_clock.hpp"
#include "support/member.hpp"
#include "support/processes.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::Member;
using test::TestJob;

namespace {

using Ranks = std::vector<std::uint32_t>;

struct Walker : Member {
  SspClock clock{segments, rank};

  explicit Walker(const TestJob& job, std::optional<std::uint32_t> wanted = {}, std::uint32_t epoch = 1)
      : Member(job, wanted) {
    if (epoch != 0) clock.enter(epoch);
  }
  void advance(int steps) {
    for (int i = 0; i < steps; ++i) clock.advance();
  }
  std::uint64_t steps() const { return SspClock::steps_of(segments.worker(rank).clock.load_acquire()); }
};

struct Look {
  std::uint64_t skew;
  Ranks blockers;
};

Look look(Walker& walker, std::uint64_t bound, bool look_at_locks = true) {
  Look result;
  result.skew = walker.clock.skew(bound, look_at_locks, result.blockers);
  return result;
}

}  // namespace

TEST_CASE("ssp clock: a single worker is never ahead") {
  const TestJob job;
  Walker a(job);
  a.advance(100);
  CHECK(look(a, 0).skew == 0);
  CHECK(look(a, 0).blockers.empty());
  CHECK(a.steps() == 100);
}

TEST_CASE("ssp clock: a skew equal to the bound passes, one more does not") {
  const TestJob job;
  for (const std::uint64_t bound : {0, 1, 3}) {
    CAPTURE(bound);
    Walker a(job), b(job);
    a.advance(static_cast<int>(bound));
    CHECK(look(a, bound).blockers.empty());
    CHECK(look(a, bound).skew == bound);
    a.advance(1);
    CHECK(look(a, bound).blockers == Ranks{b.rank});
    CHECK(look(a, bound).skew == bound + 1);
    CHECK(look(b, bound).blockers.empty());
    CHECK(look(b, bound).skew == 0);
  }
}

TEST_CASE("ssp clock: the skew is measured from the slowest of all, and all that block are named") {
  const TestJob job;
  Walker a(job), b(job), c(job), d(job);
  a.advance(9);
  b.advance(3);
  c.advance(7);
  d.advance(1);
  CHECK(look(a, 3).skew == 8);
  CHECK(look(a, 3).blockers == Ranks{1, 3});
  CHECK(look(c, 3).blockers == Ranks{1, 3});
  CHECK(look(b, 3).blockers.empty());
  CHECK(look(d, 3).blockers.empty());
}

TEST_CASE("ssp clock: the largest bound never blocks") {
  const TestJob job;
  Walker a(job), b(job);
  a.advance(1000);
  CHECK(look(a, (std::uint64_t{1} << 32) - 1).blockers.empty());
  CHECK(look(a, ~std::uint64_t{0}).blockers.empty());
}

TEST_CASE("ssp clock: a worker that has left does not count, even without checking the locks") {
  const TestJob job;
  Walker a(job), b(job);
  a.advance(5);
  REQUIRE(look(a, 1).blockers == Ranks{1});
  b.leave();
  CHECK(look(a, 1, false).blockers.empty());
  CHECK(look(a, 1, false).skew == 0);
}

TEST_CASE("ssp clock: a dead worker does not count after one check of the locks") {
  const TestJob job;
  Walker a(job);
  { const Walker dead(job); }
  a.advance(5);
  CHECK(look(a, 1, false).blockers == Ranks{1});
  CHECK(look(a, 1, true).blockers.empty());
  CHECK(look(a, 1, false).blockers.empty());  // known from the first check
}

TEST_CASE("ssp clock: a dead worker within the bound does not count in the skew once its death is known") {
  const TestJob job;
  Walker a(job), b(job);
  { const Walker dead(job); }
  b.advance(3);
  a.advance(5);
  REQUIRE(look(a, 1, true).blockers == Ranks{1});  // this check reports the death of rank 2
  b.advance(2);
  CHECK(look(a, 1, false).skew == 0);
}

TEST_CASE("ssp clock: a stopped process still counts, a killed one does not") {
  const TestJob job;
  Walker a(job);
  const test::Bell ready;
  test::Child child([&] {
    const Walker stopped(job, 1);
    ready.tell();
    test::sleep_forever();
    return 0;
  });
  REQUIRE(ready.hear());
  child.stop();
  a.advance(5);
  for (int i = 0; i < 20; ++i) CHECK(look(a, 1).blockers == Ranks{1});
  child.kill();
  CHECK(look(a, 1).blockers.empty());
}

TEST_CASE("ssp clock: a successor of a dead rank counts again, starting at the smallest clock") {
  const TestJob job;
  Walker a(job), b(job);
  a.advance(5);
  b.advance(4);
  { const Walker dead(job, 2); }
  REQUIRE(look(a, 0).blockers == Ranks{1});
  Walker successor(job, 2);
  CHECK(successor.steps() == 4);
  CHECK(look(a, 0).blockers == Ranks{1, 2});
  successor.advance(1);
  CHECK(look(a, 0).blockers == Ranks{1});
}

TEST_CASE("ssp clock: a successor blocks nobody before it enters") {
  const TestJob job;
  Walker a(job);
  { const Walker dead(job, 1); }
  a.advance(5);
  const Walker successor(job, 1, 0);
  CHECK(look(a, 0).blockers.empty());
}

TEST_CASE("ssp clock: a newcomer enters at the smallest clock of those that count") {
  const TestJob job;
  Walker a(job), b(job), left(job);
  left.leave();
  { const Walker dead(job); }
  a.advance(9);
  b.advance(6);
  const Walker c(job, 5);
  CHECK(c.steps() == 6);
  CHECK(look(a, 3).blockers.empty());
}

TEST_CASE("ssp clock: a worker that is in an epoch does not enter it again") {
  const TestJob job;
  Walker a(job), b(job);
  a.advance(5);
  b.clock.enter(1);
  CHECK(b.steps() == 0);
}

TEST_CASE("ssp clock: if one worker enters while another advances at least one sees the other") {
  // waiting.W1: one worker enters at c and checks again, the other advances to c + 1 and checks for blockers.
  const TestJob job;
  int unseen = 0;
  Walker a(job, 0);
  for (int i = 0; i < 500; ++i) {
    Member member(job, 1);
    SspClock clock(member.segments, 1);
    std::atomic<int> ready{0};
    const auto together = [&] {
      ++ready;
      while (ready != 2) spin_pause();
    };
    Look seen{};
    std::thread enterer([&] {
      together();
      clock.enter(1);
    });
    together();
    a.clock.advance();
    seen = look(a, 0);
    enterer.join();
    const std::uint64_t mine = SspClock::steps_of(member.segments.worker(1).clock.load_acquire());
    // Nobody may be behind unseen: either the newcomer was raised to a's clock, or a was told to wait.
    unseen += mine < a.steps() && seen.blockers.empty();
    member.leave();
  }
  CHECK(unseen == 0);
}

TEST_CASE("ssp clock: clocks of an older or newer epoch do not count") {
  const TestJob job;
  Walker old(job, 0, 1), a(job, 1, 2);
  CHECK(a.steps() == 0);
  a.advance(7);
  CHECK(look(a, 0).blockers.empty());
  old.advance(50);
  CHECK(look(old, 0).blockers.empty());
  old.clock.enter(2);
  CHECK(old.steps() == 7);  // its own 50 are forgotten
  a.advance(1);
  CHECK(look(a, 0).blockers == Ranks{0});
}

TEST_CASE("ssp clock: a worker that was never in an epoch does not count") {
  const TestJob job;
  Walker a(job);
  const Member async(job);
  a.advance(3);
  CHECK(look(a, 0).blockers.empty());
}

TEST_CASE("ssp clock: an advance wakes a worker that sleeps for it before the slice is over") {
  test::ManualClock clock;
  const TestJob job;
  Walker a(job), b(job);
  a.advance(1);
  for (int i = 0; i < 3; ++i) {
    std::atomic<bool> is_woken{false};
    std::thread waiter([&] {
      AtomicShm<std::uint32_t>& word = a.segments.state().clocks;
      futex_wait_slice(word, futex_prepare(word));
      is_woken = true;
    });
    CHECK(clock.wait_for_sleepers(1));
    b.clock.advance();
    CHECK(test::eventually([&] { return is_woken.load(); }));
    clock.advance(test::kSlice);  // releases it if nobody has woken it
    waiter.join();
    a.clock.advance();
  }
}

TEST_CASE("ssp clock: an advance between the check and the sleep prevents the sleep") {
  const TestJob job;
  Walker a(job), b(job);
  AtomicShm<std::uint32_t>& word = a.segments.state().clocks;
  const std::uint32_t seen = futex_prepare(word);
  b.clock.advance();
  CHECK(word.load_acquire() != seen);
  CHECK((word.load_acquire() & kSleeper) == 0);
}
