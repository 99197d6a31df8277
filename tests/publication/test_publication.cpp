// Publisher, Subscriber and Generation: readers get exactly what was published, and it does not change.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/publisher.hpp"
#include "ps_shm/subscriber.hpp"
#include "shm/publication/publication.hpp"
#include "support/error_text.hpp"
#include "support/manual_clock.hpp"
#include "support/processes.hpp"
#include "support/test_bundle.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

template <class Error, class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

void write_ones(std::uint32_t, std::span<std::byte> out) { std::fill(out.begin(), out.end(), std::byte{1}); }

}  // namespace

TEST_CASE("publication: a subscriber reads what was published, with names, types, shapes and step") {
  const PublicationName name;
  Publisher publisher({.name = name.text(),
                       .tensors = {{.name = "w", .shape = {2, 3}},
                                   {.name = "count", .dtype = DType::kInt64},
                                   {.name = "half", .dtype = DType::kBFloat16, .shape = {5}},
                                   {.name = "bytes", .dtype = DType::kUint8, .shape = {7}}}});
  CHECK(publisher.generation() == 0);
  const auto number = publisher.publish(
      [](std::uint32_t tensor, std::span<std::byte> out) { std::fill(out.begin(), out.end(), std::byte(tensor)); }, 77);
  CHECK(number == 1);

  Subscriber subscriber(name.text());
  const Generation generation = subscriber.read();
  CHECK(generation.number() == 1);
  CHECK(generation.step() == 77);
  CHECK(generation.unix_ns() > 0);
  REQUIRE(generation.tensor_count() == 4);
  CHECK(generation.spec(0) == TensorSpec{.name = "w", .shape = {2, 3}});
  CHECK(generation.spec(2).dtype == DType::kBFloat16);
  const std::size_t bytes[] = {24, 8, 10, 7};
  for (std::uint32_t tensor = 0; tensor < 4; ++tensor) {
    const auto found = generation.tensor(tensor);
    CHECK(found.size() == bytes[tensor]);
    CHECK(reinterpret_cast<std::uintptr_t>(found.data()) % 128 == 0);
    CHECK(std::all_of(found.begin(), found.end(), [&](std::byte b) { return b == std::byte(tensor); }));
  }
  CHECK(subscriber.find("half") == 2);
  CHECK(publisher.find("half") == 2);
  CHECK(contains(message_of<Error>([&] { subscriber.find("none"); }), "no tensor 'none'"));
  CHECK(generation.values<std::int64_t>(1)[0] == 0x0101010101010101);
  CHECK(generation.values<float>(0).size() == 6);
}

TEST_CASE("publication: elements are given as the type of C++ that their dtype stands for, and as no other") {
  struct Half {
    std::uint16_t bits;
  };
  const PublicationName name;
  BundleSpec spec{.name = name.text(), .tensors = {}, .subscribers = 4, .records = 0};
  for (int dtype = 1; dtype <= int(DType::kFloat8E5M2); ++dtype)
    spec.tensors.push_back({.name = fmt::format("t{}", dtype), .dtype = DType(dtype), .shape = {3}});
  Publisher publisher(spec);
  REQUIRE(publisher.publish(write_ones, 1) == 1);
  Subscriber subscriber(name.text());
  const Generation generation = subscriber.read();
  // The dtypes as which T is accepted.
  const auto accepted = [&](auto element) {
    std::vector<DType> all;
    for (std::uint32_t tensor = 0; tensor < generation.tensor_count(); ++tensor) {
      const DType dtype = generation.spec(tensor).dtype;
      try {
        const std::size_t count = generation.values<decltype(element)>(tensor).size();
        CHECK(count == 3);
        all.push_back(dtype);
      } catch (const Error& error) {
        CHECK(contains(error.what(), fmt::format("are {}: values<T>()", to_string(dtype))));
      }
    }
    return all;
  };
  using enum DType;
  CHECK(accepted(float{}) == std::vector{kFloat32});
  CHECK(accepted(double{}) == std::vector{kFloat64});
  CHECK(accepted(bool{}) == std::vector{kBool});
  CHECK(accepted(std::int64_t{}) == std::vector{kInt64});
  CHECK(accepted(0LL) == std::vector{kInt64});
  CHECK(accepted(std::int32_t{}) == std::vector{kInt32});
  CHECK(accepted(std::int16_t{}) == std::vector{kInt16});
  CHECK(accepted(std::int8_t{}) == std::vector{kInt8});
  CHECK(accepted(std::uint64_t{}) == std::vector{kUint64});
  CHECK(accepted(std::uint32_t{}) == std::vector{kUint32});
  CHECK(accepted(std::uint16_t{}) == std::vector{kBFloat16, kFloat16, kUint16});
  CHECK(accepted(std::uint8_t{}) == std::vector{kUint8, kFloat8E4M3, kFloat8E5M2});
  CHECK(accepted(Half{}) == std::vector{kBFloat16, kFloat16});
}

TEST_CASE("publication: a generation does not change, whatever is published after it") {
  const PublicationName name;
  Publisher publisher(bundle_of(name));
  Subscriber subscriber(name.text());
  publish_next(publisher);
  const Generation first = subscriber.read();
  const std::byte* where = first.tensor(0).data();
  for (int i = 0; i < 100; ++i) {
    REQUIRE(publish_next(publisher));
    const Generation other = subscriber.read(first.number());
    CHECK(other.number() == publisher.generation());
    CHECK(is_whole(other));
    CHECK(is_whole(first));
  }
  CHECK(first.tensor(0).data() == where);
}

TEST_CASE("publication: a subscriber that asks for a newer generation never gets an old one") {
  const PublicationName name;
  Publisher publisher(bundle_of(name));
  Subscriber subscriber(name.text());
  CHECK(subscriber.newest() == 0);
  CHECK_FALSE(subscriber.try_read());
  publish_next(publisher);
  CHECK(subscriber.newest() == 1);
  CHECK(subscriber.try_read());
  CHECK_FALSE(subscriber.try_read(1));
  publish_next(publisher);
  CHECK(subscriber.try_read(1)->number() == 2);
}

TEST_CASE("publication: read waits for the publication, and for its next generation") {
  const PublicationName name;
  const Bell joined, has_first;
  Child reader([&] {
    Subscriber subscriber(name.text());
    joined.tell();
    const Generation first = subscriber.read();
    has_first.tell();
    const Generation second = subscriber.read(first.number());
    return first.number() == 1 && second.number() == 2 && is_whole(second) ? 0 : 1;
  });
  Publisher publisher(bundle_of(name));
  REQUIRE(joined.hear());
  publish_next(publisher);
  REQUIRE(has_first.hear());
  publish_next(publisher);
  CHECK(reader.join() == 0);
}

TEST_CASE("publication: a new generation wakes a reader before its slice is over") {
  const PublicationName name;
  Publisher publisher(bundle_of(name));
  Subscriber subscriber(name.text());
  ManualClock clock;
  std::atomic<bool> has_read{false};
  std::thread reader([&] { has_read = subscriber.read(0, Seconds(1000)).number() == 1; });
  CHECK(clock.wait_for_sleepers(1));
  publish_next(publisher);
  CHECK(eventually([&] { return has_read.load(); }));
  clock.advance(test::kSlice);  // releases it if nobody has woken it
  reader.join();
}

TEST_CASE("publication: read returns at its deadline") {
  const PublicationName name;
  Publisher publisher(bundle_of(name));
  Subscriber subscriber(name.text());
  const ManualClock clock(ManualClock::Sleeps::kPass);
  CHECK(contains(message_of<Timeout>([&] { subscriber.read(0, Seconds(20)); }), "no generation above 0 within 20 s"));
  CHECK(clock.passed_ns() == 20 * test::kSecond);
  CHECK_THROWS_AS(subscriber.read(0, Seconds(0)), Timeout);
  publish_next(publisher);
  CHECK(subscriber.read(0, Seconds(0)).number() == 1);
  CHECK_THROWS_AS(subscriber.read(1, Seconds(20)), Timeout);
  CHECK(clock.passed_ns() == 40 * test::kSecond);
}

TEST_CASE("publication: a wait ends when its caller requests it") {
  const PublicationName name;
  Publisher publisher(bundle_of(name));
  SubscriberOptions options = hasty();
  options.stop_requested = [] { return true; };
  CHECK_THROWS_AS(Subscriber(name.text() + "-other", options), Interrupted);
  Subscriber subscriber(name.text(), options);
  CHECK_THROWS_AS(subscriber.read(), Interrupted);
}

TEST_CASE("publication: an unchanged tensor is not written again") {
  const PublicationName name;
  Publisher publisher(bundle_of(name, 2));
  Subscriber subscriber(name.text());
  publisher.publish(write_ones);
  const Generation first = subscriber.read();
  int calls = 0;
  const std::uint32_t changed[] = {1};
  publisher.publish(changed, [&](std::uint32_t tensor, std::span<std::byte> out) {
    ++calls;
    CHECK(tensor == 1);
    fill_words(out, 5);
  });
  CHECK(calls == 1);
  const Generation second = subscriber.read(1);
  CHECK(second.tensor(0).data() == first.tensor(0).data());
  CHECK(are_all(second.tensor(1), 5));
  CHECK(are_all(first.tensor(1), 0x0101010101010101));
  CHECK(publisher.tensor(1).data() != nullptr);
  CHECK(are_all(publisher.tensor(1), 5));
  publisher.publish({}, write_ones, 9);  // the same tensors under a new number
  CHECK(publisher.step() == 9);
}

TEST_CASE("publication: a generation is written in parts, in any order, and visible as a whole when it is committed") {
  const PublicationName name;
  Publisher publisher(bundle_of(name));
  Subscriber subscriber(name.text());
  publish_next(publisher);
  std::optional<Generation> first = subscriber.read();
  for (std::uint64_t number = 2; number < 20; ++number) {
    CHECK(test::publish_next_in_parts(publisher) == number);
    const Generation generation = subscriber.read(number - 1);
    CHECK(is_whole(generation));
    CHECK(generation.step() == 10 * number);
    CHECK(is_whole(*first));
  }
  std::optional<Publisher::Writing> writing = publisher.begin();
  fill_words(writing->out(0), 7);
  CHECK(subscriber.newest() == 19);
  CHECK(publisher.generation() == 19);
  CHECK(is_whole(subscriber.read()));
  writing.reset();  // given up
  CHECK(publish_next(publisher) == 20);
  std::optional<Publisher::Writing> marked = publisher.begin();
  marked->commit(3, true);
  CHECK(subscriber.read(20).is_partial());
  CHECK_FALSE(first->is_partial());
  CHECK(publish_next(publisher) == 22);
  CHECK_FALSE(subscriber.read().is_partial());
  CHECK(is_whole(subscriber.read()));
}

TEST_CASE("publication: what cannot be written in parts is refused, and the rest goes on") {
  const PublicationName name;
  Publisher publisher(bundle_of(name, 2, 16));
  std::optional<Publisher::Writing> writing = publisher.begin();
  const std::vector<std::byte> bytes(16 * 8);
  const auto code_of = [](auto&& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::kSystem;
  };
  CHECK(code_of([&] { publisher.begin(); }) == ErrorCode::kInvalidState);
  CHECK(code_of([&] { publisher.publish(write_ones); }) == ErrorCode::kInvalidState);
  CHECK(code_of([&] { writing->write(2, bytes); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { writing->write(0, bytes, 1); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { writing->write(0, {}, 16 * 8 + 1); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { writing->write(0, std::vector<std::byte>(16 * 8 + 1)); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { static_cast<void>(writing->out(2)); }) == ErrorCode::kInvalidArgument);
  fill_words(writing->out(1), 5);
  CHECK(contains(message_of<Error>([&] { writing->commit(); }), "the first generation must contain all 2 tensors"));
  fill_words(writing->out(0), 5);
  CHECK(writing->commit(3) == 1);
  CHECK(code_of([&] { writing->commit(); }) == ErrorCode::kInvalidState);
  CHECK(code_of([&] { writing->write(0, bytes); }) == ErrorCode::kInvalidState);
  CHECK(publisher.publish(write_ones) == 2);  // although the object is still there
  std::optional<Publisher> other(bundle_of(PublicationName(), 1));
  std::optional<Publisher::Writing> left_behind = other->begin();
  Publisher::Writing moved = std::move(*left_behind);
  left_behind.reset();
  fill_words(moved.out(0), 1);
  other.reset();
  CHECK(code_of([&] { moved.commit(); }) == ErrorCode::kInvalidState);
}

TEST_CASE("publication: a generation is refused while a part of a tensor is missing, and complete in any order") {
  const PublicationName name;
  Publisher publisher({.name = name.text(),
                       .tensors = {{.name = "w", .shape = {8}},
                                   {.name = "half", .dtype = DType::kBFloat16, .shape = {2, 3}},
                                   {.name = "other", .dtype = DType::kUint8, .shape = {100}}}});
  publisher.publish(write_ones);
  std::optional<Publisher::Writing> writing = publisher.begin();
  const std::vector<float> values(8, 9.0F);
  const auto refusal = [](Publisher::Writing& of) { return message_of<Error>([&] { of.commit(); }); };
  writing->write_floats(0, std::span(values).first(4));
  CHECK(contains(refusal(*writing),
                 "'" + name.text() + "': tensor 'w' was written in part: 4 of its 8 elements are missing"));
  writing->write_floats(1, std::span(values).first(1), 5);
  CHECK(contains(refusal(*writing), "4 of its 8 elements are missing; incomplete tensors in all: 2"));
  writing->write_floats(0, std::span(values).first(3), 2);  // overlaps
  CHECK(contains(refusal(*writing), "3 of its 8"));
  writing->write(0, std::as_bytes(std::span(values)).first(6), 24);  // one and a half, behind a gap of one
  CHECK(contains(refusal(*writing), "2 of its 8"));
  writing->write_floats(0, std::span(values).first(1), 7);
  writing->write_floats(0, std::span(values).first(2), 4);
  CHECK(contains(refusal(*writing), "tensor 'half' was written in part: 5 of its 6 elements are missing"));
  writing->write_floats(1, {}, 3);
  writing->write_floats(1, std::span(values).first(5));
  writing->write(1, std::vector<std::byte>(2), 4);  // again
  CHECK(publisher.generation() == 1);
  CHECK(writing->commit() == 2);

  std::optional<Publisher::Writing> next = publisher.begin();
  const std::vector<std::byte> one(1, std::byte{5});
  for (std::size_t i = 0; i < 100; ++i) {  // of each ten the last one first
    if (i != 0) CHECK(contains(refusal(*next), fmt::format("{} of its 100 elements", 100 - i)));
    next->write(2, one, i / 10 * 10 + 9 - i % 10);
  }
  next->write(0, std::vector<std::byte>(8));
  CHECK(contains(refusal(*next), "6 of its 8"));
  static_cast<void>(next->out(0));  // it is the caller's from here on
  CHECK(next->commit() == 3);
  CHECK(publisher.begin()->commit() == 4);  // nothing of it is left to the next one
}

TEST_CASE("publication: invalid contents are refused") {
  const PublicationName name;
  Publisher publisher(bundle_of(name, 3));
  const std::vector<std::uint32_t> some = {0, 2}, unknown = {3}, twice = {1, 1};
  CHECK(contains(message_of<Error>([&] { publisher.publish(some, write_ones); }),
                 "the first generation must contain all 3 tensors, not 2"));
  CHECK(
      contains(message_of<Error>([&] { publisher.publish(unknown, write_ones); }), "no tensor 3: tensors are 0 to 2"));
  CHECK(contains(message_of<Error>([&] { publisher.publish(twice, write_ones); }), "tensor 1 is given twice"));
  CHECK(publisher.generation() == 0);
}

TEST_CASE("publication: if writing a tensor fails nothing is published") {
  const PublicationName name;
  Publisher publisher(bundle_of(name));
  Subscriber subscriber(name.text());
  publish_next(publisher);
  const Generation first = subscriber.read();
  const auto fails = [](std::uint32_t tensor, std::span<std::byte> out) {
    fill_words(out, 0);
    if (tensor == 1) throw std::runtime_error("no");
  };
  for (int i = 0; i < 20; ++i) CHECK_THROWS_AS(publisher.publish(fails), std::runtime_error);
  CHECK(subscriber.newest() == 1);
  CHECK(is_whole(first));
  CHECK(publish_next(publisher) == 2);
  CHECK(is_whole(subscriber.read(1)));
}

TEST_CASE("publication: a subscriber has at most two generations at a time") {
  const PublicationName name;
  Publisher publisher(bundle_of(name));
  Subscriber subscriber(name.text());
  publish_next(publisher);
  Generation one = subscriber.read();
  std::optional<Generation> other = subscriber.read();
  CHECK(contains(message_of<Error>([&] { subscriber.try_read(); }), "at most 2 generations at a time"));
  CHECK_THROWS_AS(subscriber.read(0, Seconds(0)), Error);
  other.reset();
  publish_next(publisher);
  one = subscriber.read(one.number());  // as in a loop: the old one is released when the new one is there
  CHECK(one.number() == 2);
  const Generation moved = std::move(one);
  CHECK(is_whole(moved));
  CHECK(subscriber.try_read());
}

TEST_CASE("publication: a generation outlives its subscriber, and keeps the subscriber's entry until released") {
  const PublicationName name;
  BundleSpec spec = bundle_of(name);
  spec.subscribers = 1;
  Publisher publisher(spec);
  publish_next(publisher);
  std::optional<Generation> generation = Subscriber(name.text()).read();
  for (int i = 0; i < 20; ++i) publish_next(publisher);
  CHECK(is_whole(*generation));
  CHECK(contains(message_of<Error>([&] { Subscriber(name.text(), hasty()); }), "1 places for subscribers"));
  generation.reset();
  CHECK(Subscriber(name.text()).rank() == 0);
}

TEST_CASE("publication: with three records live leases can make a publisher busy") {
  const PublicationName name;
  BundleSpec spec = bundle_of(name);
  spec.records = 3;
  Publisher publisher(spec);
  Subscriber one(name.text()), other(name.text());
  publish_next(publisher);
  std::optional<Generation> first = one.read();
  publish_next(publisher);
  const Generation second = other.read();
  REQUIRE(publish_next(publisher) == 3);  // the third record
  CHECK_FALSE(publish_next(publisher));
  CHECK(publisher.busy_ranks() == std::vector<std::uint32_t>{one.rank(), other.rank()});
  CHECK(publisher.generation() == 3);
  CHECK(is_whole(*first));
  CHECK(is_whole(second));
  first.reset();
  CHECK(publish_next(publisher) == 4);
  CHECK(publisher.busy_ranks().empty());
  CHECK(is_whole(second));
}

TEST_CASE("publication: with enough records a publisher is never busy, whatever the subscribers hold") {
  const PublicationName name;
  Publisher publisher(bundle_of(name));
  REQUIRE(publisher.spec().records == enough_records(4));
  std::vector<Subscriber> subscribers;
  for (int i = 0; i < 4; ++i) subscribers.emplace_back(name.text());
  std::vector<Generation> held;
  for (int i = 0; i < 8; ++i) {
    publish_next(publisher);
    held.push_back(subscribers[std::size_t(i) / 2].read());
  }
  for (int i = 0; i < 50; ++i) REQUIRE(publish_next(publisher));
  for (const Generation& generation : held) CHECK(is_whole(generation));
}

TEST_CASE("publication: a publisher may wait for a lease to be returned, and reports whose it is") {
  const PublicationName name;
  BundleSpec spec = bundle_of(name);
  spec.records = 3;
  int notices = 0;
  bool stops = false;
  std::string said;
  std::optional<Generation> first;
  PublisherOptions options{.busy = BusyPolicy::kWait, .busy_wait = Seconds(0.01)};
  options.stop_requested = [&] {
    if (++notices == 3) first.reset();
    return stops;
  };
  options.log = [&](const std::string& line) {
    said = line;
    stops = !first;  // not during the wait that ends with it
  };
  options.busy_wait = Seconds(20);
  const ManualClock clock(ManualClock::Sleeps::kPass);
  Publisher publisher(spec, options);
  Subscriber one(name.text()), other(name.text());
  publish_next(publisher);
  first = one.read();
  publish_next(publisher);
  const Generation second = other.read();
  publish_next(publisher);
  CHECK(publish_next(publisher) == 4);
  CHECK(notices == 3);
  const Generation third = one.read();
  publish_next(publisher);
  CHECK_THROWS_AS(publish_next(publisher), Interrupted);
  CHECK(said == "publication " + name.text() + ": waiting for a lease to be released by subscribers 0, 1");
}

TEST_CASE("publication: a subscriber cannot write to what it reads") {
  const PublicationName name;
  Publisher publisher(bundle_of(name));
  publish_next(publisher);
  Child child([&] {
    signal(SIGSEGV, SIG_DFL);  // instead of doctest's handler
    Subscriber subscriber(name.text());
    const Generation generation = subscriber.read();
    *const_cast<std::byte*>(generation.tensor(0).data()) = std::byte{1};
    return 0;
  });
  CHECK(child.join() == -1);  // by a signal
}
