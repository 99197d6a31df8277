// The life of a publication: successive publishers, deaths, removal, and what is refused.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "ps_shm/errors.hpp"
#include "ps_shm/publisher.hpp"
#include "ps_shm/subscriber.hpp"
#include "shm/publication/bundle.hpp"
#include "support/error_text.hpp"
#include "support/hostile.hpp"
#include "support/processes.hpp"
#include "support/test_bundle.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

// A process that has published this many generations and lives on until it is killed.
class LivingPublisher {
 public:
  LivingPublisher(const BundleSpec& spec, int generations)
      : child_([&] {
          Publisher publisher(spec);
          for (int i = 0; i < generations; ++i) publish_next(publisher);
          ready_.tell();
          sleep_forever();
          return 0;
        }) {
    REQUIRE(ready_.hear());
  }
  void kill() { child_.kill(); }
  pid_t pid() const { return child_.pid(); }

 private:
  Bell ready_;
  Child child_;
};

PublisherOptions hasty_publisher() { return {.wait = Seconds(0.05)}; }

// Calls `act` once, before the first query (or the first change) of a lock.
class BeforeLock {
 public:
  BeforeLock(int command, std::function<void()> act) { command_ = command, act_ = std::move(act); }
  ~BeforeLock() { command_ = 0; }
  BeforeLock(const BeforeLock&) = delete;
  BeforeLock& operator=(const BeforeLock&) = delete;

  static void reached(int command) {
    if (command != command_) return;
    command_ = 0;
    act_();
  }

 private:
  static inline int command_ = 0;
  static inline std::function<void()> act_;
};

}  // namespace

// In place of the C library's, through which locks are taken and queried.
extern "C" int fcntl(int descriptor, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  BeforeLock::reached(command);
  return static_cast<int>(::syscall(SYS_fcntl, descriptor, command, argument));
}

TEST_CASE("publisher: a successor continues a dead one's publication, and subscribers do not notice") {
  const PublicationName name;
  LivingPublisher dead(bundle_of(name), 5);
  Subscriber subscriber(name.text());
  const Generation held = subscriber.read();
  CHECK(held.number() == 5);
  dead.kill();
  std::string said;
  PublisherOptions options;
  options.log = [&](const std::string& line) { said += line; };
  Publisher next(bundle_of(name), options);
  CHECK(contains(said, "takes it over at generation 5"));
  CHECK(next.generation() == 5);
  CHECK(next.step() == 50);
  CHECK(publish_next(next) == 6);
  CHECK(is_whole(held));
  const Generation sixth = subscriber.read(5);
  CHECK(sixth.number() == 6);
  CHECK(is_whole(sixth));
}

TEST_CASE("publisher: a dead one's last generation can still be read, then its subscribers learn of its death") {
  const PublicationName name;
  LivingPublisher publisher(bundle_of(name), 2);
  Subscriber subscriber(name.text());
  CHECK(subscriber.is_published());
  publisher.kill();
  CHECK(eventually([&] { return !subscriber.is_published(); }));
  CHECK(subscriber.read(1).number() == 2);
  CHECK_THROWS_AS(subscriber.read(2), PublisherGone);
  CHECK(contains(error_of([&] { subscriber.read(2); }), "no generation above 2, and its publisher has died"));
  CHECK(name.exists());
}

TEST_CASE("publisher: waiting subscribers learn of the end of a publication") {
  const PublicationName name;
  std::optional<Publisher> publisher(bundle_of(name));
  const Bell waits;
  Child reader([&] {
    Subscriber subscriber(name.text());
    waits.tell();
    try {
      subscriber.read();
    } catch (const PublisherGone& gone) {
      return contains(gone.what(), "has ended it") ? 0 : 1;
    }
    return 2;
  });
  REQUIRE(waits.hear());
  publisher.reset();
  CHECK(reader.join() == 0);
  CHECK_FALSE(name.exists());  // it was the last user
}

TEST_CASE("publisher: a stopped one is alive: its readers wait, and nobody takes over from it") {
  const PublicationName name;
  LivingPublisher publisher(bundle_of(name), 1);
  kill(publisher.pid(), SIGSTOP);
  Subscriber subscriber(name.text());
  CHECK(subscriber.read().number() == 1);
  CHECK_THROWS_AS(subscriber.read(1, Seconds(0.05)), Timeout);
  const std::string error = error_of([&] { Publisher(bundle_of(name), hasty_publisher()); });
  CHECK(contains(error, "has a publisher; it is in use by "));
  CHECK(contains(error, "its publisher (process " + std::to_string(publisher.pid()) + ")"));
}

TEST_CASE("publisher: the next one waits until the previous one ends") {
  const PublicationName name;
  std::optional<Publisher> first(bundle_of(name));
  publish_next(*first);
  Subscriber subscriber(name.text());
  int looks = 0;
  PublisherOptions options{.wait = Seconds(20)};
  options.stop_requested = [&] {
    if (++looks == 3) first.reset();
    return false;
  };
  Publisher second(bundle_of(name), options);
  CHECK(looks == 3);
  CHECK(publish_next(second) == 2);
  CHECK_FALSE(subscriber.has_ended());
  CHECK(subscriber.read(1).number() == 2);
}

TEST_CASE("publisher: it says that it has ended its publication before its byte is free (publication.P10)") {
  const PublicationName name;
  std::optional<Publisher> publisher(bundle_of(name));
  Subscriber subscriber(name.text());
  bool has_ended = false, is_published = false;
  const BeforeLock release(F_OFD_SETLK, [&] {
    has_ended = subscriber.has_ended();
    is_published = subscriber.is_published();
  });
  publisher.reset();
  CHECK(has_ended);
  CHECK(is_published);
}

TEST_CASE("publisher: a reader gets the last generation of one that ends while it waits (publication.P13)") {
  const PublicationName name;
  std::optional<Publisher> publisher(bundle_of(name));
  Subscriber subscriber(name.text());
  publish_next(*publisher);
  const BeforeLock end(F_OFD_GETLK, [&] {
    publish_next(*publisher);
    publisher.reset();
  });
  CHECK(subscriber.read(1, Seconds(20)).number() == 2);
  CHECK_FALSE(publisher);
}

TEST_CASE("publisher: who takes a byte of a publication that is removed at this moment starts again (names.N3)") {
  const PublicationName name;
  SUBCASE("a publisher") {
    LivingPublisher dead(bundle_of(name), 1);
    dead.kill();
    const BeforeLock remove(F_OFD_SETLK, [&] { shm::unlink_segment(name.file()); });
    const Publisher publisher(bundle_of(name));
    CHECK(publisher.generation() == 0);
    CHECK(name.exists());
  }
  SUBCASE("a subscriber") {
    Publisher orphan(bundle_of(name));
    publish_next(orphan);
    std::optional<Publisher> other;
    const BeforeLock replace(F_OFD_SETLK, [&] {
      shm::unlink_segment(name.file());
      other.emplace(bundle_of(name));
    });
    Subscriber subscriber(name.text());
    REQUIRE(other);
    CHECK(subscriber.newest() == 0);
  }
}

TEST_CASE("publisher: the last user of an ended publication removes it") {
  const PublicationName name;
  std::optional<Publisher> publisher(bundle_of(name));
  publish_next(*publisher);
  SUBCASE("the publisher") {
    { const Subscriber subscriber(name.text()); }
    CHECK(name.exists());
    publisher.reset();
  }
  SUBCASE("a subscriber, and until then others may subscribe") {
    std::optional<Subscriber> one(name.text());
    publisher.reset();
    CHECK(name.exists());
    std::optional<Subscriber> late(std::in_place, name.text(), hasty());
    CHECK(late->read().number() == 1);
    CHECK(late->has_ended());
    one.reset();
    CHECK(name.exists());
    late.reset();
  }
  SUBCASE("a generation") {
    std::optional<Generation> last = Subscriber(name.text()).read();
    publisher.reset();
    CHECK(name.exists());
    CHECK(is_whole(*last));
    last.reset();
  }
  CHECK_FALSE(name.exists());
}

TEST_CASE("publisher: a dead one's publication is kept for its successor, even after the last subscriber") {
  const PublicationName name;
  LivingPublisher publisher(bundle_of(name), 3);
  { const Subscriber subscriber(name.text()); }
  publisher.kill();
  { const Subscriber subscriber(name.text()); }
  CHECK(name.exists());
  CHECK(Publisher(bundle_of(name)).generation() == 3);
  CHECK_FALSE(name.exists());
}

TEST_CASE("publisher: a publication of other tensors is replaced if it has no users, otherwise refused") {
  const PublicationName name;
  LivingPublisher dead(bundle_of(name), 3);
  std::optional<Subscriber> subscriber(name.text());
  dead.kill();
  BundleSpec wanted = bundle_of(name);
  std::string difference;
  SUBCASE("shape") { wanted.tensors[1].shape = {1, 2}, difference = "tensor 't1' (int64 17), not 't1' (int64 1x2)"; }
  SUBCASE("type") { wanted.tensors[0].dtype = DType::kFloat16, difference = "not 't0' (float16 16)"; }
  SUBCASE("number") { wanted.tensors.pop_back(), difference = "3 tensors, not 2"; }
  SUBCASE("subscribers") {
    wanted.subscribers = 5, wanted.records = 10, difference = "4 places for subscribers, not 5";
  }
  SUBCASE("records") { wanted.records = 3, difference = "10 records, not 3"; }
  const std::string error = error_of([&] { Publisher(wanted, hasty_publisher()); });
  CHECK(contains(error, difference));
  CHECK(contains(error, "in use by subscriber 0 (process"));
  CHECK(subscriber->read().number() == 3);
  subscriber.reset();
  const Publisher next(wanted);
  CHECK(next.generation() == 0);
  CHECK(next.spec() == resolved(wanted));
}

TEST_CASE("publisher: the leases of dead subscribers keep nothing, and their entries are free") {
  const PublicationName name;
  BundleSpec spec = bundle_of(name);
  spec.subscribers = 2, spec.records = 3;
  Publisher publisher(spec);
  const auto holding = [&](const Bell& holds) {
    return [&] {
      Subscriber subscriber(name.text());
      const Generation one = subscriber.read();
      holds.tell();
      sleep_forever();
      return 0;
    };
  };
  publish_next(publisher);
  const Bell first_holds, second_holds;
  Child first(holding(first_holds));
  REQUIRE(first_holds.hear());
  publish_next(publisher);
  Child second(holding(second_holds));
  REQUIRE(second_holds.hear());
  publish_next(publisher);
  kill(first.pid(), SIGSTOP);
  REQUIRE_FALSE(publish_next(publisher));  // a stopped one is alive
  CHECK(
      contains(error_of([&] { Subscriber(name.text(), hasty()); }), "has 2 places for subscribers, and all are taken"));
  first.kill();
  second.kill();
  for (int i = 0; i < 10; ++i) CHECK(publish_next(publisher));
  Subscriber one(name.text()), other(name.text());
  CHECK(other.rank() == 1);
  for (int i = 0; i < 10; ++i) CHECK(publish_next(publisher));  // the new owners have none of these leases
  CHECK(is_whole(one.read()));
}

TEST_CASE("publisher: one that is killed while it writes a generation leaves the previous one") {
  const PublicationName name;
  const Bell writes;
  Child child([&] {
    Publisher publisher(bundle_of(name));
    publish_next(publisher);
    publisher.publish([&](std::uint32_t tensor, std::span<std::byte> out) {
      fill_words(out, 0);
      if (tensor != 1) return;
      writes.tell();
      sleep_forever();
    });
    return 0;
  });
  REQUIRE(writes.hear());
  Subscriber subscriber(name.text());
  CHECK(is_whole(subscriber.read()));
  child.kill();
  Publisher next(bundle_of(name));
  for (std::uint64_t number = 2; number < 20; ++number) {
    CHECK(publish_next(next) == number);
    CHECK(is_whole(subscriber.read(number - 1)));
  }
}

TEST_CASE("publisher: invalid publications are refused") {
  const BundleSpec good{.name = "n", .tensors = {{.name = "t"}}};
  const auto refused = [&](const std::function<void(BundleSpec&)>& change) {
    BundleSpec spec = good;
    change(spec);
    return error_of([&] { Publisher{spec}; });
  };
  CHECK(contains(refused([](BundleSpec& s) { s.name = "a.b"; }), "'a.b' cannot name a publication"));
  CHECK(contains(refused([](BundleSpec& s) { s.tensors.clear(); }), "has 0 tensors; 1 to 262144"));
  CHECK(contains(refused([](BundleSpec& s) { s.tensors[0].name = "a b"; }), "'a b' cannot name a tensor"));
  CHECK(contains(refused([](BundleSpec& s) { s.tensors[0].name = std::string(128, 'x'); }), "1 to 127"));
  CHECK(contains(refused([](BundleSpec& s) { s.tensors.push_back(s.tensors[0]); }), "two tensors 't'"));
  CHECK(contains(refused([](BundleSpec& s) { s.tensors.resize(262145, s.tensors[0]); }), "has 262145 tensors"));
  CHECK(contains(refused([](BundleSpec& s) { s.tensors[0].shape = {0, 1U << 30, 1U << 30}; }), "at most 2^40"));
  CHECK(contains(refused([](BundleSpec& s) { s.tensors[0].shape = {1U << 30, 1U << 30}; }), "at most 2^40"));
  CHECK(contains(refused([](BundleSpec& s) { s.tensors[0].shape.assign(9, 1); }), "has 9 axes"));
  CHECK(contains(refused([](BundleSpec& s) { s.tensors[0].dtype = DType(99); }), "dtype 99"));
  CHECK(contains(refused([](BundleSpec& s) { s.subscribers = 0; }), "0 places for subscribers; 1 to 256"));
  CHECK(contains(refused([](BundleSpec& s) { s.subscribers = 257; }), "257 places"));
  CHECK(contains(refused([](BundleSpec& s) { s.records = 1; }), "1 records; 2 to 514"));
  CHECK(contains(refused([](BundleSpec& s) { s.tensors[0].shape = {1ULL << 39}; }), "cannot reserve"));
  CHECK(contains(error_of([] { Subscriber("a/b"); }), "cannot name a publication"));
}

TEST_CASE("publisher: by default the number of records follows from the size") {
  const auto records = [](std::uint64_t bytes, std::uint32_t subscribers) {
    return resolved({.name = "n",
                     .tensors = {{.name = "t", .dtype = DType::kUint8, .shape = {bytes}}},
                     .subscribers = subscribers})
        .records;
  };
  CHECK(records(1000, 16) == 34);
  CHECK(records(1000, 256) == 514);
  CHECK(records(16 << 20, 16) == 16);
  CHECK(records(64 << 20, 16) == 4);
  CHECK(records(std::uint64_t{4} << 30, 16) == 4);
  CHECK(records(std::uint64_t{4} << 30, 1) == 4);
}

TEST_CASE("subscriber: no publication in time, a damaged one, a file that is not a publication") {
  const PublicationName name;
  CHECK_THROWS_AS(Subscriber(name.text(), hasty()), Timeout);
  CHECK(contains(error_of([&] { Subscriber(name.text(), hasty(0.01)); }), "waited 0.01 s for publication"));
  std::fclose(std::fopen(("/dev/shm/" + name.file()).c_str(), "w"));
  std::system(("chmod 600 /dev/shm/" + name.file()).c_str());
  CHECK(contains(error_of([&] { Subscriber(name.text(), hasty()); }), "damaged"));
  Publisher publisher(bundle_of(name));  // nobody uses the existing one
  publish_next(publisher);
  CHECK(is_whole(Subscriber(name.text()).read()));
}
