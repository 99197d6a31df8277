// Which tensors a publication may have: many of them, of all types, and some without elements.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/publisher.hpp"
#include "ps_shm/subscriber.hpp"
#include "shm/publication/publication.hpp"
#include "support/test_bundle.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

void write_ones(std::uint32_t, std::span<std::byte> out) { std::fill(out.begin(), out.end(), std::byte{1}); }

}  // namespace

TEST_CASE("publication: many tensors of all types") {
  const PublicationName name;
  BundleSpec spec{.name = name.text(), .tensors = {}, .subscribers = 2, .records = 4};
  for (std::uint32_t i = 0; i < 20000; ++i)
    spec.tensors.push_back({.name = fmt::format("layer.{}", i), .dtype = DType(1 + i % 15), .shape = {1 + i % 3}});
  CHECK(memory_bytes(spec) < (16 << 20));
  Publisher publisher(spec);
  const std::uint32_t changed[] = {5, 19999};
  publisher.publish(write_ones);
  publisher.publish(changed, [](std::uint32_t, std::span<std::byte> out) { fill_words(out, 2); });
  Subscriber subscriber(name.text());
  const Generation generation = subscriber.read();
  CHECK(generation.number() == 2);
  CHECK(generation.tensor(19998)[0] == std::byte{1});
  CHECK(subscriber.find("layer.19999") == 19999);
  CHECK_THROWS_AS(subscriber.find("layer."), Error);
}

TEST_CASE("publication: the time to find a tensor does not grow with their number") {
  const auto cpu_ns_each = [](std::uint32_t count) {
    const PublicationName name;
    BundleSpec spec{.name = name.text(), .tensors = {}, .subscribers = 1, .records = 2};
    for (std::uint32_t i = 0; i < count; ++i)
      spec.tensors.push_back({.name = fmt::format("model.layers.{}.mlp.experts.{}.up_proj.weight", i % 61, i / 61)});
    timespec begun, ended;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
    Publisher publisher(spec);
    std::optional<Publisher::Writing> writing = publisher.begin();
    for (std::uint32_t i = 0; i < count; ++i)
      writing->write(publisher.find(spec.tensors[i].name), std::as_bytes(std::span(&i, 1)));
    writing->commit();
    Subscriber subscriber(name.text());
    const Generation generation = subscriber.read();
    std::uint32_t wrong = 0;
    for (std::uint32_t i = 0; i < count; ++i)
      wrong += std::memcmp(generation.tensor(subscriber.find(spec.tensors[i].name)).data(), &i, sizeof i) != 0;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ended);
    CHECK(wrong == 0);
    return (double(ended.tv_sec - begun.tv_sec) * 1e9 + double(ended.tv_nsec - begun.tv_nsec)) / count;
  };
  const double few = std::min(cpu_ns_each(10'000), cpu_ns_each(10'000));
  CHECK(cpu_ns_each(100'000) < 4 * few);
}

TEST_CASE("publication: tensors without elements are published as they are, and need not be written") {
  const PublicationName name;
  BundleSpec spec{.name = name.text(),
                  .tensors = {{.name = "none", .shape = {0, 3}},
                              {.name = "w", .shape = {1024}},  // all of a row
                              {.name = "last", .dtype = DType::kBFloat16, .shape = {1ULL << 40, 0}}},
                  .subscribers = 1,
                  .records = 3};
  CHECK(spec.tensors[2].byte_count() == 0);
  Publisher publisher(spec);
  Subscriber subscriber(name.text());
  std::optional<Publisher::Writing> writing = publisher.begin();
  CHECK_THROWS_WITH_AS(writing->commit(), doctest::Contains("the first generation must contain all 3 tensors"), Error);
  writing->write(1, std::vector<std::byte>(4096, std::byte{7}));
  CHECK(writing->commit() == 1);
  const auto check_newest = [&](std::byte wanted, std::uint64_t changed) {
    const Generation generation = subscriber.read();
    shm::Segment segment;
    REQUIRE(segment.open(name.file(), shm::Access::kReadOnly) == shm::AttachOutcome::kReady);
    const shm::Bundle bundle(std::move(segment));
    CHECK(shm::look_at(bundle, shm::record_of(bundle.newest().newest.load_relaxed()))->changed == changed);
    CHECK(generation.spec(0) == spec.tensors[0]);
    CHECK(generation.tensor(0).empty());
    CHECK(generation.tensor(1).size() == 4096);
    CHECK(generation.tensor(1)[4095] == wanted);
    CHECK(generation.values<std::uint16_t>(2).empty());
    generation.copy(2, {});
    const std::uint32_t row = std::uint32_t(generation.tensor(1).data() - subscriber.memory().data()) / shm::kLargestPage;
    CHECK(subscriber.memory().size() == 3 * shm::kLargestPage);
    CHECK_NOTHROW(subscriber.pin(generation, row));
    CHECK_THROWS_AS(subscriber.pin(generation, row == 2 ? 0 : row + 1), Error);
    subscriber.unpin_all();
  };
  check_newest(std::byte{7}, 1);
  const std::uint32_t some[] = {0, 2};
  CHECK(publisher.publish(some, write_ones) == 2);
  check_newest(std::byte{7}, 0);
  CHECK(publisher.publish(write_ones) == 3);
  check_newest(std::byte{1}, 1);
  CHECK(publisher.trim() >= 4096);
  std::optional<Publisher::Writing> nothing = publisher.begin();
  nothing->write(0, {});
  CHECK(nothing->out(2).empty());
  nothing->write_floats(2, {});
  CHECK(nothing->commit() == 4);
  check_newest(std::byte{1}, 0);
}

TEST_CASE("publication: all tensors may be without elements") {
  const PublicationName name;
  Publisher publisher({.name = name.text(), .tensors = {{.name = "none", .shape = {0}}}}, {.populate = true});
  Subscriber subscriber(name.text());
  CHECK(publisher.begin()->commit() == 1);
  CHECK(publisher.publish(write_ones) == 2);
  CHECK(publisher.trim() != 0);
  CHECK(publisher.publish(write_ones) == 3);
  const Generation generation = subscriber.read();
  CHECK(generation.number() == 3);
  CHECK(generation.tensor(subscriber.find("none")).empty());
}
