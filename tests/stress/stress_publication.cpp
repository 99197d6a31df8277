// Readers of a publication in processes and threads: every generation that a reader has is consistent and does not
// change, while publishers and readers are killed, and while some readers are stopped for good.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "support/processes.hpp"
#include "support/stress.hpp"
#include "support/test_bundle.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

using Clock = std::chrono::steady_clock;

// What the processes of a test count together.
struct Tally {
  std::atomic<std::uint64_t> published{0}, busy{0}, subscribed{0}, reads{0}, broken{0}, backwards{0}, failed{0};
  std::atomic<bool> stops{false};
};

class SharedTally {
 public:
  SharedTally()
      : tally_(new (mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Tally) {}
  ~SharedTally() { munmap(tally_, sizeof(Tally)); }
  Tally* operator->() const noexcept { return tally_; }
  Tally& operator*() const noexcept { return *tally_; }

 private:
  Tally* tally_;
};

constexpr std::uint64_t kLeastPublished = 10;

// Publishes every `period`, or less often: no result depends on it.
int publish(const BundleSpec& spec, Tally& tally, std::chrono::microseconds period) {
  Publisher publisher(spec, {.wait = Seconds(600)});
  for (auto next = Clock::now(); !tally.stops; next += period) {
    const std::uint64_t number = publisher.generation() + 1;
    if (const auto got = publish_next(publisher)) {
      tally.failed += *got != number;
      ++tally.published;
    } else {
      ++tally.busy;
    }
    std::this_thread::sleep_until(next);
  }
  return 0;
}

// Reads until it is told to stop, or `reads` generations; holds one while it takes the next.
int read(const std::string& name, Tally& tally, std::uint64_t reads, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Subscriber subscriber(name, {.wait = Seconds(600)});
  ++tally.subscribed;
  std::optional<Generation> held;
  std::uint64_t last = 0;
  // Some generations must appear meanwhile, whatever share of the processor the publisher gets.
  for (std::uint64_t count = 0; (count < reads || tally.published <= kLeastPublished) && !tally.stops;) {
    try {
      Generation next = subscriber.read(random() % 16 == 0 ? last : 0, Seconds(0.05));  // some are the same again
      tally.backwards += next.number() < last;
      last = next.number();
      tally.broken += !is_whole(next) + (held && !is_whole(*held));
      if (random() % 8 != 0) held = std::move(next);
      ++count, ++tally.reads;
    } catch (const Timeout&) {
    } catch (const PublisherGone&) {
      usleep(100);
    }
  }
  tally.broken += held && !is_whole(*held);
  return 0;
}

}  // namespace

TEST_CASE("publication: an actor that reads all the time never sees a mixture of generations, nor stops its learner") {
  const std::uint64_t reads = stress_rounds(100'000);
  const PublicationName name;
  const SharedTally tally;
  const BundleSpec spec = bundle_of(name, 8, 2000);
  Child learner([&] { return publish(spec, *tally, std::chrono::milliseconds(1)); });
  Child actor([&] { return read(name.text(), *tally, reads, 1); });
  CHECK(actor.join() == 0);
  tally->stops = true;
  CHECK(learner.join() == 0);
  std::printf("%llu reads beside %llu generations\n", static_cast<unsigned long long>(tally->reads),
              static_cast<unsigned long long>(tally->published));
  CHECK(tally->reads >= reads);
  CHECK(tally->published > kLeastPublished);
  CHECK(tally->broken == 0);
  CHECK(tally->backwards == 0);
  CHECK(tally->busy == 0);
  CHECK(tally->failed == 0);
  CHECK_FALSE(name.exists());
}

TEST_CASE("publication: of 64 readers eight are stopped for good, and the learner and the others continue") {
  constexpr int kReaders = 64, kStopped = 8;
  const PublicationName name;
  const SharedTally tally;
  BundleSpec spec = bundle_of(name, 4, 200);
  spec.subscribers = kReaders;
  SUBCASE("enough records") { spec.records = 0; }
  SUBCASE("few records") { spec.records = kStopped * 2 + 16; }
  Child learner([&] { return publish(spec, *tally, std::chrono::milliseconds(1)); });
  std::vector<std::unique_ptr<Child>> readers;
  for (int i = 0; i < kReaders; ++i)
    readers.push_back(
        std::make_unique<Child>([&, i] { return read(name.text(), *tally, ~std::uint64_t{0}, std::uint64_t(i)); }));
  CHECK(eventually([&] { return tally->subscribed == kReaders && tally->reads > 1000; }));
  for (int i = 0; i < kStopped; ++i) kill(readers[std::size_t(i)]->pid(), SIGSTOP);
  const std::uint64_t published = tally->published, reads = tally->reads, more = stress_rounds(300);
  CHECK(eventually([&] { return tally->published > published + more && tally->reads > reads + 20 * more; }));
  tally->stops = true;
  for (int i = kStopped; i < kReaders; ++i) CHECK(readers[std::size_t(i)]->join() == 0);
  CHECK(learner.join() == 0);
  CHECK(name.exists());  // eight still hold it
  readers.clear();       // they are killed
  CHECK(tally->broken == 0);
  CHECK(tally->backwards == 0);
  CHECK(tally->failed == 0);
  if (spec.records == 0) CHECK(tally->busy == 0);
}

TEST_CASE("publication: publishers and readers are killed at any moment, and no generation is torn or left out") {
  const std::uint64_t seed = stress_seed(), kills = stress_rounds(200);
  std::mt19937_64 random(seed);
  constexpr std::size_t kReaders = 6;
  const PublicationName name;
  const SharedTally tally;
  BundleSpec spec = bundle_of(name, 4, 3000);
  spec.subscribers = kReaders + 2;  // a killed one's entry is free a moment later
  SUBCASE("enough records") { spec.records = 0; }
  SUBCASE("few records") { spec.records = 4; }
  std::vector<std::unique_ptr<Child>> children(kReaders + 1);
  const auto start = [&](std::size_t i) {
    const std::uint64_t own = random();
    children[i] = std::make_unique<Child>([&, i, own] {
      return i == 0 ? publish(spec, *tally, std::chrono::microseconds(50))
                    : read(name.text(), *tally, ~std::uint64_t{0}, own);
    });
  };
  for (std::size_t i = 0; i <= kReaders; ++i) start(i);
  for (std::uint64_t i = 0; i < kills; ++i) {
    const std::uint64_t reads = tally->reads, published = tally->published;
    REQUIRE(eventually([&] { return tally->reads > reads + 5 && tally->published > published; }));
    const std::size_t victim = random() % 3 == 0 ? 0 : 1 + random() % kReaders;
    children[victim]->kill();
    start(victim);
  }
  for (auto& child : children) child->kill();  // all at once, with leases or without
  std::printf("%llu reads, %llu generations, %llu times busy\n", static_cast<unsigned long long>(tally->reads),
              static_cast<unsigned long long>(tally->published), static_cast<unsigned long long>(tally->busy));
  CHECK(tally->broken == 0);
  CHECK(tally->backwards == 0);
  CHECK(tally->failed == 0);
  Publisher publisher(spec);  // what the dead ones held is free
  for (int i = 0; i < 20; ++i) CHECK(publish_next(publisher));
  CHECK(is_whole(Subscriber(name.text()).read()));
}

TEST_CASE("publication: threads with a subscriber each, in one process") {
  const std::uint64_t generations = stress_rounds(5000);
  const PublicationName name;
  Tally tally;
  BundleSpec spec = bundle_of(name, 4, 100);
  SUBCASE("enough records") { spec.records = 0; }
  SUBCASE("few records") { spec.records = 3; }
  std::optional<Publisher> publisher(spec);
  std::vector<std::thread> readers;
  for (std::uint64_t i = 0; i < 4; ++i)
    readers.emplace_back([&, i] { tally.failed += std::uint64_t(read(name.text(), tally, ~std::uint64_t{0}, i)); });
  while (publisher->generation() < generations) tally.busy += !publish_next(*publisher);
  tally.stops = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(tally.broken == 0);
  CHECK(tally.backwards == 0);
  CHECK(tally.failed == 0);
  if (spec.records == 0) CHECK(tally.busy == 0);
}
