// TaskLocks between descriptors and between processes: who owns a byte, and when the kernel releases it.
#include <doctest/doctest.h>

#include "ps_shm/errors.hpp"
#include "shm/segment/liveness.hpp"
#include "support/job.hpp"
#include "support/processes.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::Bell;
using test::Child;
using test::JobName;

namespace {

constexpr std::uint32_t kByte = kRankByte + 3;

Segment new_segment(const JobName& name) {
  Segment segment = Segment::create(SegmentKind::kControl, 0, name.text(), 77, 4096, 4096);
  REQUIRE(segment.link(name.control()));
  segment.publish();
  return segment;
}

Segment opened(const JobName& name) {
  Segment segment;
  if (segment.open(name.control(), Access::kReadWrite) != AttachOutcome::kReady) throw Error(name.text());
  return segment;
}

// Two descriptors of one segment.
struct Pair {
  JobName name;
  Segment first = new_segment(name), second = opened(name);
  TaskLocks mine{first.descriptor()}, theirs{second.descriptor()};
};

// Takes a byte through its own attachment, reports it and sleeps.
int hold_byte(const JobName& name, const Bell& holding) {
  const Segment segment = opened(name);
  if (!TaskLocks(segment.descriptor()).try_take(kByte)) return 1;
  holding.tell();
  test::sleep_forever();
}

}  // namespace

TEST_CASE("liveness: a byte that was not taken has no owner") {
  const Pair pair;
  CHECK_FALSE(pair.mine.is_held_by_other(kByte));
  CHECK_FALSE(pair.mine.is_any_held_by_other());
}

TEST_CASE("liveness: a byte can be taken only once") {
  const Pair pair;
  REQUIRE(pair.mine.try_take(kByte));
  CHECK_FALSE(pair.theirs.try_take(kByte));
  CHECK(pair.theirs.is_held_by_other(kByte));
}

TEST_CASE("liveness: a taken byte does not affect its neighbours") {
  const Pair pair;
  REQUIRE(pair.mine.try_take(kByte));
  CHECK_FALSE(pair.theirs.is_held_by_other(kByte - 1));
  CHECK(pair.theirs.try_take(kByte + 1));
}

TEST_CASE("liveness: a released byte can be taken by another") {
  const Pair pair;
  REQUIRE(pair.mine.try_take(kByte));
  pair.mine.release(kByte);
  CHECK_FALSE(pair.theirs.is_held_by_other(kByte));
  CHECK(pair.theirs.try_take(kByte));
}

TEST_CASE("liveness: through its owner's descriptor a byte reads as free") {
  const Pair pair;
  REQUIRE(pair.mine.try_take(kByte));
  CHECK_FALSE(pair.mine.is_held_by_other(kByte));
}

TEST_CASE("liveness: a read-only descriptor can still query") {
  const Pair pair;
  REQUIRE(pair.mine.try_take(kByte));
  Segment reader;
  REQUIRE(reader.open(pair.name.control(), Access::kReadOnly) == AttachOutcome::kReady);
  CHECK(TaskLocks(reader.descriptor()).is_held_by_other(kByte));
  CHECK_FALSE(TaskLocks(reader.descriptor()).is_held_by_other(kByte + 1));
}

TEST_CASE("liveness: closing the segment releases its bytes") {
  const Pair pair;
  {
    const Segment third = opened(pair.name);
    REQUIRE(TaskLocks(third.descriptor()).try_take(kByte));
  }
  CHECK_FALSE(pair.mine.is_held_by_other(kByte));
}

TEST_CASE("liveness: a worker's byte is a rank's, a ps's is not") {
  const Pair pair;
  REQUIRE(pair.mine.try_take(kTaskByte));
  CHECK(pair.theirs.is_any_held_by_other());
  CHECK_FALSE(pair.theirs.is_any_rank_held_by_other());
  REQUIRE(pair.mine.try_take(kRankByte + kMaxRanks - 1));
  CHECK(pair.theirs.is_any_rank_held_by_other());
}

TEST_CASE("liveness: the whole range is refused while another owns one byte of it") {
  const Pair pair;
  REQUIRE(pair.mine.try_take(kRankByte + kMaxRanks - 1));
  CHECK_FALSE(pair.theirs.try_take_all());
  CHECK_FALSE(pair.mine.is_any_held_by_other());  // the attempt has taken nothing
}

TEST_CASE("liveness: the whole range includes its owner's own bytes and excludes all others") {
  const Pair pair;
  REQUIRE(pair.mine.try_take(kTaskByte));
  REQUIRE(pair.mine.try_take_all());
  CHECK(pair.theirs.is_being_removed());
  CHECK_FALSE(pair.theirs.try_take(kByte));
  pair.mine.release_all();
  CHECK_FALSE(pair.theirs.is_being_removed());
  CHECK(pair.theirs.try_take_all());
}

TEST_CASE("liveness: a killed process's byte is free") {
  const JobName name;
  const Segment segment = new_segment(name);
  const TaskLocks locks(segment.descriptor());
  const Bell holding;
  Child child([&] { return hold_byte(name, holding); });
  REQUIRE(holding.hear());
  REQUIRE(locks.is_held_by_other(kByte));
  child.kill();
  CHECK(test::eventually([&] { return !locks.is_held_by_other(kByte); }));
}

TEST_CASE("liveness: a stopped process keeps its byte") {
  const JobName name;
  const Segment segment = new_segment(name);
  const Bell holding;
  const Child child([&] { return hold_byte(name, holding); });
  REQUIRE(holding.hear());
  kill(child.pid(), SIGSTOP);
  int status;
  REQUIRE(waitpid(child.pid(), &status, WUNTRACED) == child.pid());
  CHECK(TaskLocks(segment.descriptor()).is_held_by_other(kByte));
}

TEST_CASE("liveness: a forked child does not keep its dead parent's byte") {
  const JobName name;
  const Segment segment = new_segment(name);
  const TaskLocks locks(segment.descriptor());
  const Bell holding, forked, end, was_there;
  Child parent([&] {
    const Segment mine = opened(name);
    if (!TaskLocks(mine.descriptor()).try_take(kByte)) return 1;
    if (fork() == 0) {
      forked.tell();
      if (end.hear()) was_there.tell();  // it outlives its parent
      _exit(0);
    }
    holding.tell();
    test::sleep_forever();
  });
  REQUIRE(holding.hear());
  REQUIRE(forked.hear());
  REQUIRE(locks.is_held_by_other(kByte));
  parent.kill();
  CHECK(test::eventually([&] { return !locks.is_held_by_other(kByte); }));
  end.tell();
  CHECK(was_there.hear());
}

TEST_CASE("liveness: a forked child's exit and its own destructors do not release its live parent's byte") {
  Pair pair;
  REQUIRE(pair.mine.try_take(kByte));
  Child child([&] {
    Segment inherited = std::move(pair.first);
    inherited = Segment();
    return 0;
  });
  CHECK(child.join() == 0);
  CHECK(pair.theirs.is_held_by_other(kByte));
}
