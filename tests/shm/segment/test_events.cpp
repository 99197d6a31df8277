// The rings of events: their order, which events are dropped, and what writers that die or collide leave behind.
#include <doctest/doctest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "ps_shm/job_view.hpp"
#include "shm/base/racing.hpp"
#include "shm/segment/events.hpp"
#include "support/processes.hpp"
#include "support/test_job.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::TestJob;

namespace {

constexpr std::uint64_t kBuildingBit = std::uint64_t{1} << 63;

// An event whose fields all encode the same number.
EventRecord related(std::uint64_t number, EventKind kind = EventKind::kDied) {
  EventRecord event{.kind = kind,
                    .rank = static_cast<std::uint32_t>(number),
                    .step = number,
                    .first = ~number,
                    .second = number * 3,
                    .ranks = {},
                    .unix_ns = 0};
  for (std::size_t i = 0; i < event.ranks.bits.size(); ++i) event.ranks.bits[i] = number + i;
  return event;
}

bool is_related(const EventRecord& event) {
  const EventRecord whole = related(event.step, event.kind);
  return event.rank == whole.rank && event.first == whole.first && event.second == whole.second &&
         event.ranks.bits == whole.ranks.bits && event.unix_ns != 0;
}

std::vector<std::uint64_t> steps(const TestJob& job, EventKind kind = EventKind::kDied) {
  std::vector<std::uint64_t> found;
  for (const EventRecord& event : read_events(job.segments)) {
    CHECK(is_related(event));
    if (event.kind == kind) found.push_back(event.step);
  }
  return found;
}

std::vector<std::uint64_t> count_from(std::uint64_t first, std::uint64_t end) {
  std::vector<std::uint64_t> all;
  for (std::uint64_t number = first; number < end; ++number) all.push_back(number);
  return all;
}

}  // namespace

TEST_CASE("events: a new job has none") {
  const TestJob job;
  CHECK(read_events(job.segments).empty());
}

TEST_CASE("events: all fields are read back, in the order of writing, with the time") {
  TestJob job;
  for (std::uint64_t number = 1; number <= 10; ++number) record_event(job.segments, related(number));
  CHECK(steps(job) == count_from(1, 11));
  std::uint64_t last = 0;
  for (const EventRecord& event : read_events(job.segments)) {
    CHECK(event.unix_ns >= last);
    last = event.unix_ns;
  }
}

TEST_CASE("events: each ring keeps its newest events") {
  TestJob job;
  for (const std::uint64_t count : {kLifeEvents - 1, kLifeEvents, kLifeEvents + 1, 3 * kLifeEvents + 17}) {
    CAPTURE(count);
    TestJob fresh;
    for (std::uint64_t number = 1; number <= count; ++number) record_event(fresh.segments, related(number));
    const std::uint64_t first = count > kLifeEvents ? count - kLifeEvents + 1 : 1;
    CHECK(steps(fresh) == count_from(first, count + 1));
  }
  for (std::uint64_t number = 1; number <= kDecisions + 5; ++number)
    record_event(job.segments, related(number, EventKind::kDecided));
  CHECK(steps(job, EventKind::kDecided) == count_from(6, kDecisions + 6));
}

TEST_CASE("events: many decisions do not displace joins and deaths") {
  TestJob job;
  record_event(job.segments, related(1));
  for (std::uint64_t number = 2; number <= 2 * kDecisions; ++number)
    record_event(job.segments, related(number, EventKind::kDecided));
  record_event(job.segments, related(3 * kDecisions));
  CHECK(steps(job) == std::vector<std::uint64_t>{1, 3 * kDecisions});
  CHECK(read_events(job.segments).front().kind == EventKind::kDied);
  CHECK(read_events(job.segments).back().kind == EventKind::kDied);
}

TEST_CASE("events: a writer killed while writing costs one entry, and its partial event is never read") {
  TestJob job;
  record_event(job.segments, related(1));
  EventShm& place = job.segments.event(1);  // ticket 1
  REQUIRE(job.segments.state().event_tickets[0].fetch_add_acq_rel(1) == 1);
  place.sequence.store_release(kBuildingBit | 2);
  place.kind.store_relaxed(static_cast<std::uint32_t>(EventKind::kDied));
  place.step.store_relaxed(2);
  for (std::uint64_t number = 3; number <= 10; ++number) record_event(job.segments, related(number));
  std::vector<std::uint64_t> expected = count_from(3, 11);
  expected.insert(expected.begin(), 1);
  CHECK(steps(job) == expected);
  for (std::uint64_t number = 11; number <= 10 + 2 * kLifeEvents; ++number) record_event(job.segments, related(number));
  CHECK(steps(job) == count_from(11 + kLifeEvents + 1, 11 + 2 * kLifeEvents));  // one entry fewer, nothing else lost
  CHECK(place.sequence.load_acquire() == (kBuildingBit | 2));
}

TEST_CASE("events: a writer killed while overwriting an old event loses that one as well, but no other") {
  TestJob job;
  for (std::uint64_t number = 1; number <= kLifeEvents; ++number) record_event(job.segments, related(number));
  REQUIRE(job.segments.state().event_tickets[0].fetch_add_acq_rel(1) == kLifeEvents);
  job.segments.event(0).sequence.store_release(kBuildingBit | (kLifeEvents + 1));
  CHECK(steps(job) == count_from(2, kLifeEvents + 1));
}

TEST_CASE("events: a writer killed after drawing a ticket costs nothing") {
  TestJob job;
  record_event(job.segments, related(1));
  static_cast<void>(job.segments.state().event_tickets[0].fetch_add_acq_rel(1));
  record_event(job.segments, related(2));
  CHECK(steps(job) == count_from(1, 3));
}

TEST_CASE("events: an event is dropped if its writer finds only entries of dead writers, and the writer continues") {
  TestJob job;
  for (std::uint32_t i = 0; i < kLifeEvents; ++i) job.segments.event(i).sequence.store_release(kBuildingBit | (i + 1));
  record_event(job.segments, related(1));
  CHECK(read_events(job.segments).empty());
}

TEST_CASE("events: a writer that was lapped does not overwrite a newer event") {
  TestJob job;
  for (std::uint64_t number = 1; number <= kLifeEvents + 1; ++number) record_event(job.segments, related(number));
  job.segments.state().event_tickets[0].store_release(0);  // as if the next ticket had been drawn long ago
  record_event(job.segments, related(5000));
  const std::vector<std::uint64_t> all = steps(job);
  CHECK(std::set<std::uint64_t>(all.begin(), all.end()).contains(kLifeEvents + 1));
}

TEST_CASE("events: a child killed at any moment while it writes leaves only complete events") {
  TestJob job;
  for (int round = 0; round < 20; ++round) {
    const auto written = [&] { return job.segments.state().event_tickets[0].load_acquire(); };
    const std::uint64_t before = written();
    test::Child child([&] {
      JobSegments own = job.attach();
      for (std::uint64_t number = 1;; ++number) record_event(own, related(number));
      return 0;
    });
    while (written() < before + 10 + static_cast<std::uint64_t>(37 * round)) spin_pause();
    child.kill();
    for (const EventRecord& event : read_events(job.segments)) CHECK(is_related(event));
  }
  record_event(job.segments, related(1'000'000'000));
  CHECK(read_events(job.segments).back().step == 1'000'000'000);
  CHECK(read_events(job.segments).size() >= kLifeEvents - 21);
}

TEST_CASE("events: concurrent writers and readers never write or see a torn event, and none is lost") {
  TestJob job;
  constexpr std::uint64_t kWriters = 3, kEach = kThreadSanitizer ? 2'000 : 200'000;
  std::atomic<std::uint64_t> writing{kWriters}, torn{0}, reads{0};
  std::atomic<bool> is_reading{false};
  std::vector<std::thread> threads;
  for (std::uint64_t writer = 0; writer < kWriters; ++writer)
    threads.emplace_back([&, writer] {
      while (!is_reading) std::this_thread::yield();
      for (std::uint64_t i = 0; i < kEach; ++i)
        record_event(job.segments, related(writer * kEach + i, i % 2 == 0 ? EventKind::kDied : EventKind::kDecided));
      --writing;
    });
  threads.emplace_back([&] {
    is_reading = true;
    for (bool more = true; more;) {  // once more after the last write
      more = writing != 0;
      for (const EventRecord& event : read_events(job.segments)) {
        torn += !is_related(event);
        ++reads;
      }
    }
  });
  for (std::thread& thread : threads) thread.join();
  CHECK(torn == 0);
  CHECK(reads > 0);
  const std::vector<EventRecord> left = read_events(job.segments);
  std::set<std::uint64_t> numbers;
  for (const EventRecord& event : left) {
    CHECK(is_related(event));
    numbers.insert(event.step);
  }
  CHECK(numbers.size() == left.size());
  CHECK(left.size() == kLifeEvents + kDecisions);
}

TEST_CASE("events: each kind has a readable text, even with numbers out of range") {
  TestJob job;
  for (std::uint32_t kind = 1; kind <= static_cast<std::uint32_t>(EventKind::kTaskDied); ++kind)
    record_event(job.segments, related(~std::uint64_t{0} - kind, static_cast<EventKind>(kind)));
  const std::vector<Event> events = JobView(job.name.text()).events();
  CHECK(events.size() == static_cast<std::uint32_t>(EventKind::kTaskDied));
  for (const Event& event : events) {
    CHECK_FALSE(event.kind.empty());
    CHECK_FALSE(event.text.empty());
  }
}

TEST_CASE("events: an event of an unknown kind, as in a damaged segment, does not stop the reader") {
  TestJob job;
  record_event(job.segments, related(1, static_cast<EventKind>(77)));
  CHECK(JobView(job.name.text()).events().size() <= 1);
}

TEST_CASE("events: a decision names its contributors") {
  TestJob job;
  EventRecord event{.kind = EventKind::kDecided, .rank = 2, .step = 41};
  for (const std::uint32_t rank : {0U, 2U, 63U, 64U, 255U}) event.ranks.insert(rank);
  record_event(job.segments, event);
  const Event seen = JobView(job.name.text()).events().at(0);
  CHECK(seen.kind == "decided");
  CHECK(seen.step == 41);
  CHECK(seen.rank == 2);
  CHECK(seen.ranks == std::vector<std::uint32_t>{0, 2, 63, 64, 255});
}

TEST_CASE("events: a change of a setting that this program does not know is shown as such") {
  TestJob job;
  record_event(job.segments, {.kind = EventKind::kSet, .rank = 99});
  const std::vector<Event> events = JobView(job.name.text()).events();
  REQUIRE(events.size() == 1);
  CHECK(events[0].text == "something unknown");
}
