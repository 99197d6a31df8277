// The memory of a publication, copies into and out of it, and acknowledgements.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/publisher.hpp"
#include "ps_shm/subscriber.hpp"
#include "shm/segment/segment.hpp"
#include "support/manual_clock.hpp"
#include "support/own_shm.hpp"
#include "support/processes.hpp"
#include "support/test_bundle.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

constexpr std::uint64_t kMega = 1 << 20;

// Three tensors of 1 MiB, 2 MiB and 1 MiB.
BundleSpec four_megabytes(const PublicationName& name, std::uint32_t records = 4) {
  const auto tensor = [](const char* called, std::uint64_t bytes) {
    return TensorSpec{.name = called, .dtype = DType::kUint8, .shape = {bytes}};
  };
  return {.name = name.text(),
          .tensors = {tensor("a", kMega), tensor("b", 2 * kMega), tensor("c", kMega)},
          .subscribers = 2,
          .records = records};
}

// Memory of the publication in MiB; the words around the tensors are a few pages.
std::uint64_t megabytes(const PublicationName& name) {
  shm::Segment segment;
  CHECK(segment.open(name.file(), shm::Access::kReadOnly) == shm::AttachOutcome::kReady);
  return segment.allocated_bytes() / kMega;
}

void fill(std::uint32_t tensor, std::span<std::byte> out) { std::fill(out.begin(), out.end(), std::byte(tensor + 1)); }

bool is_filled(const Generation& generation) {
  for (std::uint32_t tensor = 0; tensor < 3; ++tensor)
    for (const std::byte one : generation.tensor(tensor))
      if (one != std::byte(tensor + 1)) return false;
  return true;
}

}  // namespace

TEST_CASE("publication memory: a record takes its memory when it is first written, a tensor that is shared none") {
  const PublicationName name;
  Publisher publisher(four_megabytes(name));
  CHECK(memory_bytes(publisher.spec()) / kMega == 16);
  CHECK(megabytes(name) == 4);  // the first generation will never be without memory
  publisher.publish(fill);
  CHECK(megabytes(name) == 4);
  const std::uint32_t b[] = {1};
  publisher.publish(b, fill);
  CHECK(megabytes(name) == 6);
  Subscriber subscriber(name.text());
  const Generation second = subscriber.read();
  publisher.publish(b, fill);  // into the slot of the first generation
  CHECK(megabytes(name) == 6);
  publisher.publish(fill);
  CHECK(megabytes(name) == 10);  // the reader's b is in row 1, the one before in row 0
  CHECK(is_filled(second));
}

TEST_CASE("publication memory: with `populate` all records have their memory from the start") {
  const PublicationName name;
  Publisher publisher(four_megabytes(name), {.populate = true});
  CHECK(megabytes(name) == 16);
  publisher.publish(fill);
  CHECK(is_filled(Subscriber(name.text()).read()));
}

TEST_CASE("publication memory: trimming keeps what is the newest or leased, and later generations are complete") {
  const PublicationName name;
  Publisher publisher(four_megabytes(name));
  Subscriber subscriber(name.text());
  CHECK(publisher.trim() / kMega == 4);
  publisher.publish(fill);
  std::optional<Generation> first = subscriber.read();
  for (int i = 0; i < 3; ++i) publisher.publish(fill);
  CHECK(megabytes(name) == 12);
  CHECK(publisher.trim() / kMega == 4);
  CHECK(megabytes(name) == 8);
  CHECK(publisher.trim() == 0);
  CHECK(is_filled(*first));
  CHECK(is_filled(subscriber.read(1)));
  first.reset();
  CHECK(publisher.trim() / kMega == 4);
  CHECK(megabytes(name) == 4);
  const std::uint32_t b[] = {1};
  for (int i = 0; i < 5; ++i) {
    publisher.publish(b, fill);
    publisher.trim();
    CHECK(megabytes(name) == 4);
    CHECK(is_filled(subscriber.read()));
  }
  const auto writing = publisher.begin();
  CHECK_THROWS_WITH_AS(publisher.trim(), doctest::Contains("a generation is being written"), Error);
}

TEST_CASE("publication memory: a row that a live subscriber has pinned keeps its memory") {
  const PublicationName name;
  Publisher publisher(four_megabytes(name));
  std::optional<Subscriber> subscriber(name.text());
  Subscriber other(name.text());
  publisher.publish(fill);
  {
    const Generation first = subscriber->read();
    REQUIRE(row_of(*subscriber, first) == 0);
    CHECK(subscriber->memory().size() == publisher.memory().size());
    CHECK_THROWS_WITH_AS(subscriber->pin(first, 1), doctest::Contains("row 1 cannot be pinned"), Error);
    CHECK_THROWS_WITH_AS(other.pin(first, 0), doctest::Contains("row 0 cannot be pinned"), Error);
    subscriber->pin(first, 0);
  }
  publisher.publish(fill);
  CHECK(publisher.trim() == 0);
  CHECK(megabytes(name) == 8);
  subscriber->unpin_all();
  CHECK(publisher.trim() / kMega == 4);
  publisher.publish(fill);
  {
    const Generation third = subscriber->read();
    subscriber->pin(third, row_of(*subscriber, third));
  }
  publisher.publish(fill);
  CHECK(publisher.trim() == 0);
  subscriber.reset();
  CHECK(publisher.trim() / kMega == 4);
  CHECK(is_filled(other.read()));
}

TEST_CASE("publication memory: the next publisher finds a trimmed publication as it is, and needs its memory anew") {
  const PublicationName name;
  const BundleSpec spec = four_megabytes(name);
  Child first([&] {
    Publisher publisher(spec);
    for (int i = 0; i < 3; ++i) publisher.publish(fill);
    publisher.trim();
    _exit(0);  // as if killed
    return 1;
  });
  CHECK(first.join() == 0);
  Publisher publisher(spec);
  Subscriber subscriber(name.text());
  CHECK(is_filled(subscriber.read()));
  CHECK(publisher.publish(fill) == 4);
  CHECK(is_filled(subscriber.read(3)));
}

TEST_CASE("publication memory: when /dev/shm is full nothing is published, and it works once there is room") {
  check_in_own_shm("size=20m", [] {
    const PublicationName name;
    {
      const Filler filler(3 * kMega);
      try {
        Publisher publisher(four_megabytes(name));
        return 1;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kNoSpace) return 2;
        if (std::string(error.what()).find("shm-size") == std::string::npos) return 3;
      }
    }
    std::optional<Filler> filler(5 * kMega);
    Publisher publisher(four_megabytes(name));
    Subscriber subscriber(name.text());
    if (publisher.publish(fill) != 1) return 4;
    std::optional<Generation> first = subscriber.read();
    for (int i = 0; i < 2; ++i) try {
        publisher.publish(fill);
        return 5;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kNoSpace) return 6;
      }
    try {
      publisher.begin()->out(1);
      return 7;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNoSpace) return 8;
    }
    if (publisher.generation() != 1 || !is_filled(*first) || subscriber.try_read(1)) return 9;
    filler.reset();
    if (publisher.publish(fill) != 2 || !is_filled(subscriber.read(1)) || !is_filled(*first)) return 10;
    first.reset();
    publisher.trim();
    const Filler again(kMega);
    try {
      publisher.publish(fill);  // in memory that it had before
      return 11;
    } catch (const Error& error) {
      return error.code() == ErrorCode::kNoSpace ? 0 : 12;
    }
  });
}

TEST_CASE("publication memory: two records are enough if the reader keeps up") {
  const PublicationName name;
  Publisher publisher(four_megabytes(name, 2));
  Subscriber subscriber(name.text());
  publisher.publish(fill);
  std::optional<Generation> held = subscriber.read();
  CHECK(publisher.publish(fill) == 2);
  CHECK_FALSE(publisher.publish(fill));  // the reader has the one before
  CHECK(publisher.busy_ranks() == std::vector<std::uint32_t>{0});
  CHECK(is_filled(*held));
  for (std::uint64_t next = 3; next < 20; ++next) {
    held = subscriber.read(held->number());
    CHECK(is_filled(*held));
    CHECK(publisher.publish(fill) == next);
  }
  CHECK(megabytes(name) == 8);
  BundleSpec one = four_megabytes(name, 1);
  CHECK_THROWS_WITH_AS(check(one), doctest::Contains("2 to 514 are possible"), Error);
}

TEST_CASE("publication copies: tensors of any size and alignment arrive as they were, also around the caches") {
  const PublicationName name;
  BundleSpec spec{.name = name.text(), .tensors = {}, .subscribers = 1, .records = 2};
  const std::uint64_t sizes[] = {1, 63, 65'535, 65'536, 65'537, 16'384 * 5, 100'001, 36 * kMega + 17};
  for (const std::uint64_t size : sizes)
    spec.tensors.push_back({.name = std::to_string(size), .dtype = DType::kUint8, .shape = {size}});
  Publisher publisher(spec);
  Subscriber subscriber(name.text());
  std::vector<std::byte> bytes(sizes[7] + 64), out(bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i * 2'654'435'761U >> 11);
  for (const std::size_t shift : {0, 1, 16, 63}) {
    const std::span<const std::byte> from = std::span(bytes).subspan(shift);
    {
      std::optional<Publisher::Writing> writing = publisher.begin();
      REQUIRE(writing);
      for (std::uint32_t tensor = 0; tensor < 8; ++tensor) writing->write(tensor, from.first(sizes[tensor]));
      writing->write(7, from.first(2 * kMega + 5), 3 * kMega + 7);  // a part at an odd place
      writing->commit();
    }
    const Generation generation = subscriber.read();
    for (std::uint32_t tensor = 0; tensor < 7; ++tensor) {
      const std::span<std::byte> to = std::span(out).subspan(63 - shift, sizes[tensor]);
      out[63 - shift + sizes[tensor]] = std::byte{99};
      generation.copy(tensor, to);
      CHECK(std::equal(to.begin(), to.end(), from.begin()));
      CHECK(out[63 - shift + sizes[tensor]] == std::byte{99});
    }
    const std::span<std::byte> to = std::span(out).first(sizes[7]);
    generation.copy(7, to);
    const std::size_t part = 3 * kMega + 7, end = part + 2 * kMega + 5;
    CHECK(std::equal(to.begin(), to.begin() + std::ptrdiff_t(part), from.begin()));
    CHECK(std::equal(to.begin() + std::ptrdiff_t(part), to.begin() + std::ptrdiff_t(end), from.begin()));
    CHECK(std::equal(to.begin() + std::ptrdiff_t(end), to.end(), from.begin() + std::ptrdiff_t(end)));
    CHECK_THROWS_WITH_AS(generation.copy(0, to), doctest::Contains("tensor '1' has 1 bytes, not"), Error);
  }
}

TEST_CASE("publication copies: floats are rounded to bfloat16, to nearest with ties to even") {
  const PublicationName name;
  Publisher publisher({.name = name.text(),
                       .tensors = {{.name = "half", .dtype = DType::kBFloat16, .shape = {100'000}},
                                   {.name = "full", .shape = {3}},
                                   {.name = "count", .dtype = DType::kInt64}}});
  std::vector<float> values(100'000);
  std::uint32_t bits = 1;
  for (float& value : values) value = std::bit_cast<float>(bits = bits * 1'664'525 + 1'013'904'223);
  const float special[] = {0.0F,
                           -0.0F,
                           INFINITY,
                           -INFINITY,
                           NAN,
                           -NAN,
                           std::bit_cast<float>(0x7f800001U),  // a NaN whose upper half alone would be infinite
                           std::numeric_limits<float>::max(),  // rounds to infinity
                           std::bit_cast<float>(0x3f808000U),  // ties
                           std::bit_cast<float>(0x3f818000U),
                           std::numeric_limits<float>::denorm_min()};
  std::copy(std::begin(special), std::end(special), values.begin());
  std::optional<Publisher::Writing> writing = publisher.begin();
  writing->write_floats(0, std::span(values).subspan(500), 500);
  writing->write_floats(0, std::span(values).first(500));
  writing->write_floats(1, std::span(values).first(2), 1);
  writing->write_floats(1, std::span(values).subspan(2, 1));
  CHECK_THROWS_WITH_AS(writing->write_floats(0, values, 1), doctest::Contains("from element 1 on do not fit"), Error);
  CHECK_THROWS_WITH_AS(writing->write_floats(1, values, 4), doctest::Contains("from element 4 on do not fit"), Error);
  CHECK_THROWS_WITH_AS(writing->write_floats(2, values), doctest::Contains("has elements of int64"), Error);
  std::fill_n(writing->out(2).begin(), 8, std::byte{0});
  writing->commit();
  const Generation generation = Subscriber(name.text()).read();
  CHECK(std::bit_cast<std::uint32_t>(generation.values<float>(1)[0]) == 0x7f800000U);
  CHECK(std::signbit(generation.values<float>(1)[2]));
  const std::span<const std::uint16_t> halves = generation.values<std::uint16_t>(0);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    // The two neighbours in bfloat16, in double: which is nearer, and if both are, which is even.
    const auto word = std::bit_cast<std::uint32_t>(values[i]);
    const std::uint32_t below = word & 0xffff0000U, above = below + 0x10000;
    std::uint32_t wanted = below;
    if (std::isnan(values[i])) {
      wanted = below | 0x400000;
    } else if (!std::isinf(values[i])) {
      const double low = std::bit_cast<float>(below), exact = values[i];
      // The next one after the largest is infinite: as if it were the next power of two.
      const double high = std::isinf(std::bit_cast<float>(above)) ? std::copysign(std::ldexp(1.0, 128), exact)
                                                                  : double(std::bit_cast<float>(above));
      const double to_low = std::abs(exact - low), to_high = std::abs(high - exact);
      if (to_high < to_low || (to_high == to_low && (below >> 16) % 2 == 1)) wanted = above;
    }
    wrong += halves[i] != wanted >> 16;
  }
  CHECK(wrong == 0);
}

TEST_CASE("acknowledgements: a publisher sees which generation each subscriber uses, and waits for them") {
  const PublicationName name;
  Publisher publisher(bundle_of(name));
  publish_next(publisher);
  publish_next(publisher);
  CHECK(publisher.readers().empty());
  CHECK(publisher.wait_for(1).empty());  // of each live one
  Subscriber one(name.text()), other(name.text());
  const Generation held = one.read();
  CHECK_THROWS_WITH_AS(one.acknowledge(3), doctest::Contains("no generation 3 to acknowledge: its newest one is 2"),
                       Error);
  one.acknowledge(2);
  other.acknowledge(1);
  const auto readers = publisher.readers();
  REQUIRE(readers.size() == 2);
  CHECK((readers[0].rank == 0 && readers[0].acknowledged == 2 && readers[0].pid == std::uint32_t(getpid())));
  CHECK(readers[0].generations == std::vector<std::uint64_t>{2});
  CHECK((readers[1].rank == 1 && readers[1].acknowledged == 1 && readers[1].generations.empty()));
  CHECK(publisher.wait_for(1, 2).empty());
  CHECK(publisher.wait_for(2, 1) == std::vector<std::uint32_t>{1});
  CHECK_THROWS_WITH_AS(publisher.wait_for(2, 2, Seconds(0)),
                       doctest::Contains("1 of 2 subscribers have acknowledged generation 2 within 0 s; not yet: "
                                         "subscribers 1"),
                       Timeout);
  CHECK_THROWS_WITH_AS(publisher.wait_for(2, 3, Seconds(0)), doctest::Contains("1 of 3 subscribers"), Timeout);
  CHECK_THROWS_WITH_AS(publisher.wait_for(3), doctest::Contains("no generation 3 to wait for"), Error);
  CHECK_THROWS_WITH_AS(publisher.wait_for(2, 5), doctest::Contains("4 places for subscribers, fewer than 5"), Error);
  { const Subscriber gone = std::move(other); }
  CHECK(publisher.readers().size() == 1);
  CHECK(publisher.wait_for(2).empty());
  CHECK_THROWS_WITH_AS(publisher.wait_for(2, 2, Seconds(0)), doctest::Contains("no other is alive"), Timeout);
  Subscriber next(name.text());
  CHECK(publisher.readers()[1].acknowledged == 0);
}

TEST_CASE("acknowledgements: the next owner of a killed subscriber's entry has acknowledged nothing") {
  const PublicationName name;
  Publisher publisher(bundle_of(name));
  publish_next(publisher);
  const Bell acknowledged;
  Child dies([&] {
    Subscriber(name.text()).acknowledge(1);  // leaves
    Subscriber other(name.text());
    other.acknowledge(1);
    acknowledged.tell();
    sleep_forever();
    return 0;
  });
  REQUIRE(acknowledged.hear());
  CHECK(publisher.wait_for(1, 1, Seconds(0)).empty());
  dies.kill();
  CHECK(publisher.readers().empty());
  CHECK_THROWS_AS(publisher.wait_for(1, 1, Seconds(0)), Timeout);
  Subscriber next(name.text());
  CHECK(publisher.readers()[0].acknowledged == 0);
  CHECK_THROWS_AS(publisher.wait_for(1, 1, Seconds(0)), Timeout);
}

TEST_CASE("acknowledgements: one ends the publisher's wait before its slice is over, and so does a death") {
  const PublicationName name;
  Publisher publisher(bundle_of(name));
  publish_next(publisher);
  Subscriber subscriber(name.text());
  const Bell joined;
  Child dies([&] {
    const Subscriber other(name.text());
    joined.tell();
    sleep_forever();
    return 0;
  });
  REQUIRE(joined.hear());
  ManualClock clock;
  std::optional<std::vector<std::uint32_t>> missing;
  std::atomic<bool> is_over{false};
  std::thread first([&] {
    missing = publisher.wait_for(1, 1, Seconds(1000));
    is_over = true;
  });
  CHECK(clock.wait_for_sleepers(1));
  subscriber.acknowledge(1);
  CHECK(eventually([&] { return is_over.load(); }));
  clock.advance(test::kSlice);  // releases it if nobody has woken it
  first.join();
  CHECK(missing == std::vector<std::uint32_t>{1});
  std::thread second([&] { missing = publisher.wait_for(1, 0, Seconds(1000)); });
  CHECK(clock.wait_for_sleepers(1));
  dies.kill();
  clock.advance(test::kSlice);
  second.join();
  CHECK(missing == std::vector<std::uint32_t>{});
}
