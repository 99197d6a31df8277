// Several writers of one publication: their slices, their deaths, and what is refused.
#include <doctest/doctest.h>

#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "ps_shm/errors.hpp"
#include "ps_shm/publisher.hpp"
#include "ps_shm/subscriber.hpp"
#include "shm/publication/publication.hpp"
#include "shm/publication/round.hpp"
#include "support/manual_clock.hpp"
#include "support/processes.hpp"
#include "support/sharded.hpp"
#include "support/test_bundle.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

shm::Bundle bundle_of(const Sharded& all) {
  shm::Segment segment;
  REQUIRE(segment.open(shm::bundle_name(all.name.text()), shm::Access::kReadWrite) == shm::AttachOutcome::kReady);
  return shm::Bundle(std::move(segment));
}

// A writer, or the leader, as the words of the segment see it. Destroying it corresponds to a death.
struct Part {
  shm::Bundle bundle;
  shm::GenerationWriter generations{bundle};
  shm::Round round;
  std::uint32_t writer;

  Part(const Sharded& all, std::uint32_t number) : bundle(bundle_of(all)), round(bundle, number), writer(number) {
    REQUIRE(bundle.locks().try_take(shm::kWriterByte + number));
  }
  shm::Round::Attempt open_round(std::uint64_t step) {
    REQUIRE(bundle.locks().try_take(shm::kPublisherByte));
    REQUIRE(generations.find_record());
    generations.begin();
    for (std::uint32_t tensor = 0; tensor < bundle.tensors(); ++tensor) generations.place(tensor);
    return round.open(generations.record(), step);
  }
  void write(const Sharded& all, const shm::Round::Attempt& attempt, std::uint64_t step) {
    for (const Slice& slice : all.plan[writer])
      for (const std::uint64_t element : elements_of(all.spec.tensors[slice.tensor], slice)) {
        const std::int64_t value = value_at(step, slice.tensor, element);
        const std::uint32_t slot = bundle.slots(shm::record_of(attempt.round))[slice.tensor].load_relaxed();
        std::memcpy(bundle.slot(slice.tensor, slot) + 8 * element, &value, 8);
      }
  }
  bool has_done(std::uint32_t number, const shm::Round::Attempt& attempt) const {
    return round.has_done(number, attempt);
  }
};

}  // namespace

TEST_CASE("writers: a call ends at its deadline and says who is missing, and the next one succeeds") {
  const Sharded all;
  Publisher one = all.writer(0), two = all.writer(1);
  CHECK_THROWS_WITH_AS(all.publish(one, 0, 1, kHasty), doctest::Contains("writers 2 are not alive"), Timeout);
  Publisher three = all.writer(2);
  {
    Publishing beside(three, all, 2, 1, kHasty);
    CHECK_THROWS_WITH_AS(all.publish(one, 0, 1, kHasty), doctest::Contains("writers 1"), Timeout);
    CHECK(beside.message().find("was not published within") != std::string::npos);
  }
  CHECK_THROWS_WITH_AS(all.publish(two, 1, 1, 0), doctest::Contains("has not begun"), Timeout);
  CHECK(one.generation() == 0);
  Publishing beside(two, all, 1, 2), last(three, all, 2, 2);
  CHECK(all.publish(one, 0, 2) == 1);
  CHECK(beside.number() == 1);
  CHECK(last.number() == 1);
  CHECK(is_of_step(Subscriber(all.name.text()).read(), 2));
}

TEST_CASE("writers: one that publishes another step takes no part, so no generation is mixed (round.R2)") {
  const Sharded all;
  Publisher one = all.writer(0), two = all.writer(1), three = all.writer(2);
  Publishing leader(one, all, 0, 2), beside(three, all, 2, 2);
  while (leader.writes() < 2) std::this_thread::yield();
  CHECK_THROWS_WITH_AS(all.publish(two, 1, 1, kHasty), doctest::Contains("the leader publishes step 2"), Timeout);
  CHECK(all.publish(two, 1, 2) == 1);
  CHECK(leader.number() == 1);
  CHECK(is_of_step(Subscriber(all.name.text()).read(), 2));
}

TEST_CASE(
    "writers: if the leader dies after it has published, the others learn that the generation is there (round.R5)") {
  const Sharded all;
  std::optional<Publisher> creator = all.writer(0);
  Publisher two = all.writer(1), three = all.writer(2);
  Subscriber subscriber(all.name.text());  // keeps the publication
  creator.reset();
  std::optional<Part> leader(std::in_place, all, 0);
  const shm::Round::Attempt attempt = leader->open_round(7);
  Publishing beside(two, all, 1, 7), last(three, all, 2, 7);
  leader->write(all, attempt, 7);
  leader->round.note_done(attempt);
  REQUIRE(eventually([&] { return leader->has_done(1, attempt) && leader->has_done(2, attempt); }));
  CHECK(leader->generations.commit(7) == 1);
  leader.reset();
  CHECK(beside.number() == 1);
  CHECK(last.number() == 1);
  CHECK(beside.writes() == 1);
  CHECK(is_of_step(subscriber.read(), 7));
}

TEST_CASE(
    "writers: if the leader dies before it publishes, another one takes its place, and all write again (round.R8)") {
  const Sharded all;
  std::optional<Publisher> creator = all.writer(0);
  Publisher two = all.writer(1), three = all.writer(2);
  Subscriber subscriber(all.name.text());
  creator.reset();
  std::optional<Part> leader(std::in_place, all, 0);
  const shm::Round::Attempt attempt = leader->open_round(7);
  Publishing beside(two, all, 1, 7), last(three, all, 2, 7);
  leader->round.note_done(attempt);  // all have done, but it has not written
  REQUIRE(eventually([&] { return leader->has_done(1, attempt) && leader->has_done(2, attempt); }));
  leader.reset();
  CHECK(subscriber.is_published());  // the others are alive
  Publisher one = all.writer(0);
  CHECK(all.publish(one, 0, 7) == 1);
  CHECK(beside.number() == 1);
  CHECK(last.number() == 1);
  CHECK(beside.writes() >= 2);
  CHECK(is_of_step(subscriber.read(), 7));
}

TEST_CASE("writers: one that is late with an old attempt does not complete a new one (round.R3)") {
  const Sharded all;
  Publisher one = all.writer(0), three = all.writer(2);
  Part late(all, 1);
  shm::Round::Attempt seen;
  {
    ManualClock clock;
    Publishing leader(one, all, 0, 1), beside(three, all, 2, 1);
    REQUIRE(eventually([&] { return late.round.try_enter(1, seen); }));
    REQUIRE(clock.wait_for_sleepers(2));
    clock.advance(61 * kSecond);
    CHECK(leader.message().find("writers 1 have not written their slices") != std::string::npos);
  }
  CHECK(late.round.is_over(seen));
  CHECK(!late.round.committed(seen));
  CHECK(one.trim() == 0);  // the late one may still be writing
  {
    Publishing again(one, all, 0, 2), too(three, all, 2, 2);
    shm::Round::Attempt next;
    REQUIRE(eventually([&] { return late.round.try_enter(2, next); }));
    REQUIRE(eventually([&] { return late.has_done(0, next) && late.has_done(2, next); }));
    late.write(all, seen, 1);
    late.round.note_done(seen);
    CHECK(!late.round.is_over(next));
    CHECK(one.generation() == 0);
    late.write(all, next, 2);
    late.round.note_done(next);
    CHECK(again.number() == 1);
    CHECK(too.number() == 1);
    REQUIRE(late.round.is_over(next));
    CHECK(late.round.committed(next) == 1);
  }
  CHECK(is_of_step(Subscriber(all.name.text()).read(), 2));
}

TEST_CASE("writers: the successor of one that has done an attempt does not write in it (round.R7)") {
  const Sharded all;
  Publisher one = all.writer(0), three = all.writer(2);
  std::optional<Part> victim(std::in_place, all, 1);
  Publishing leader(one, all, 0, 1);
  shm::Round::Attempt attempt;
  REQUIRE(eventually([&] { return victim->round.try_enter(1, attempt); }));
  victim->write(all, attempt, 1);
  victim->round.note_done(attempt);
  victim.reset();
  Publisher successor = all.writer(1);
  {
    Publishing again(successor, all, 1, 1, kHasty);
    CHECK(again.message().find("was not published") != std::string::npos);
    CHECK(again.writes() == 0);
  }
  CHECK(all.publish(three, 2, 1) == 1);
  CHECK(leader.number() == 1);
  CHECK(is_of_step(Subscriber(all.name.text()).read(), 1));
}

TEST_CASE(
    "writers: one that is killed while it writes is missed, and its successor completes the generation (round.R4)") {
  const Sharded all;
  const Bell writes;
  Child victim([&] {
    Publisher two = all.writer(1);
    two.publish_slices(
        [&](std::uint32_t, Publisher::SliceOutput&) {
          writes.tell();
          sleep_forever();
        },
        1);
    return 0;
  });
  Publisher one = all.writer(0), three = all.writer(2);
  Publishing leader(one, all, 0, 1), beside(three, all, 2, 1);
  REQUIRE(writes.hear());
  const shm::Bundle seen = bundle_of(all);
  REQUIRE(shm::is_open(seen.round().round.load_relaxed()));
  victim.kill();
  REQUIRE(eventually([&] { return !shm::is_open(seen.round().round.load_relaxed()); }));
  CHECK(seen.newest().newest.load_relaxed() == 0);
  Publisher successor = all.writer(1);
  CHECK(all.publish(successor, 1, 1) == 1);
  CHECK(leader.number() == 1);
  CHECK(beside.number() == 1);
  CHECK(is_of_step(Subscriber(all.name.text()).read(), 1));
}

TEST_CASE("writers: what one of them throws ends its call, and the others go on when it has come again") {
  const Sharded all;
  Publisher one = all.writer(0), two = all.writer(1), three = all.writer(2);
  struct Failure {};
  const auto fail = [](std::uint32_t, Publisher::SliceOutput&) { throw Failure(); };
  Publishing beside(two, all, 1, 1), last(three, all, 2, 1);
  CHECK_THROWS_AS(one.publish_slices(fail, 1), Failure);
  CHECK(all.publish(one, 0, 1) == 1);
  CHECK(beside.number() == 1);
  CHECK(last.number() == 1);
}

TEST_CASE("writers: with two records they wait for a reader of the generation before") {
  Sharded all;
  all.spec.records = 2;
  Publisher one = all.writer(0), two = all.writer(1), three = all.writer(2);
  Subscriber subscriber(all.name.text());
  std::optional<Generation> held;
  for (std::uint64_t step = 1; step <= 2; ++step) {
    Publishing beside(two, all, 1, step), last(three, all, 2, step);
    CHECK(all.publish(one, 0, step) == step);
    if (step == 1) held = subscriber.read();
  }
  CHECK_THROWS_WITH_AS(all.publish(one, 0, 3, kHasty), doctest::Contains("subscribers 0 hold all records"), Timeout);
  Publishing leader(one, all, 0, 3), beside(two, all, 1, 3), last(three, all, 2, 3);
  CHECK(is_of_step(*held, 1));
  held.reset();
  CHECK(leader.number() == 3);
}

TEST_CASE("writers: readers wait while one of them is alive, and the last one to leave removes the publication") {
  const Sharded all;
  {
    std::optional<Publisher> one = all.writer(0), two = all.writer(1);
    Subscriber subscriber(all.name.text());
    one.reset();
    CHECK(subscriber.is_published());
    CHECK_THROWS_AS(subscriber.read(0, Seconds(kHasty)), Timeout);
    two.reset();
    CHECK(!subscriber.is_published());
    CHECK_THROWS_AS(subscriber.read(), PublisherGone);
    CHECK(all.name.exists());
  }
  CHECK(!all.name.exists());
}

TEST_CASE("writers: memory is given back by the leader, and later generations are whole") {
  const Sharded all;
  Publisher one = all.writer(0), two = all.writer(1), three = all.writer(2);
  for (std::uint64_t step = 1; step <= 6; ++step) {
    Publishing beside(two, all, 1, step), last(three, all, 2, step);
    CHECK(all.publish(one, 0, step) == step);
    CHECK(beside.number() == step);
    CHECK(last.number() == step);
    CHECK(two.trim() == 0);
    if (step == 3) CHECK(one.trim() != 0);
    CHECK(is_of_step(Subscriber(all.name.text()).read(), step));
  }
}

TEST_CASE("writers: a round without a record or a slot is refused") {
  const Sharded all;
  std::optional<Publisher> creator = all.writer(0);
  Publisher two = all.writer(1);
  creator.reset();
  Part leader(all, 0);
  const shm::Round::Attempt attempt = leader.open_round(1);
  leader.bundle.slots(shm::record_of(attempt.round))[0].store_relaxed(0xffff);
  CHECK_THROWS_WITH_AS(all.publish(two, 1, 1), doctest::Contains("a round names no slot"), Error);
  leader.round.open(999, 1);
  CHECK_THROWS_WITH_AS(all.publish(two, 1, 1), doctest::Contains("a round names no record"), Error);
}

TEST_CASE("writers: calls of the other kind of publisher are refused") {
  const Sharded all;
  Publisher one = all.writer(0);
  CHECK_THROWS_WITH_AS(one.publish([](std::uint32_t, std::span<std::byte>) {}),
                       doctest::Contains("has 3 writers, which can only publish their slices"), Error);
  CHECK_THROWS_WITH_AS(one.begin(), doctest::Contains("can only publish their slices"), Error);
  const PublicationName name;
  Publisher alone(bundle_of(name));
  CHECK_THROWS_WITH_AS(alone.publish_slices([](std::uint32_t, Publisher::SliceOutput&) {}, 1),
                       doctest::Contains("has one publisher"), Error);
}
