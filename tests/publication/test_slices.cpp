// The slices of a publication's writers: how they come together, and which plans are refused.
#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/publisher.hpp"
#include "ps_shm/subscriber.hpp"
#include "publish/slices.hpp"
#include "support/sharded.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

TEST_CASE("writers: slices of rows and columns come together, in each generation") {
  const Sharded all;
  Publisher one = all.writer(0), two = all.writer(1), three = all.writer(2);
  Subscriber subscriber(all.name.text());
  std::optional<Generation> held;
  for (std::uint64_t step = 1; step <= 5; ++step) {
    Publishing beside(two, all, 1, 10 * step), last(three, all, 2, 10 * step);
    CHECK(all.publish(one, 0, 10 * step) == step);
    CHECK(beside.number() == step);
    CHECK(last.number() == step);
    Generation generation = subscriber.read(step - 1);
    CHECK(is_of_step(generation, 10 * step));
    if (held) CHECK(is_of_step(*held, 10 * (step - 1)));
    held = std::move(generation);
    for (const Publisher* publisher : {&one, &two, &three}) {
      CHECK(publisher->generation() == step);
      CHECK(publisher->step() == 10 * step);
    }
  }
}

TEST_CASE("writers: the runs of a slice are its elements in row-major order, each run as long as possible") {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    TensorSpec tensor{.name = "t"};
    Slice slice;
    for (std::uint32_t axes = random() % 5; axes-- > 0;) {
      const std::uint64_t extent = 1 + random() % 4, begin = random() % extent;
      tensor.shape.push_back(extent);
      slice.begin.push_back(begin);
      slice.extent.push_back(random() % 2 == 0 ? extent - begin : 1 + random() % (extent - begin));
    }
    std::vector<std::uint64_t> found;
    std::optional<std::uint64_t> end;
    for_each_run(tensor, slice, [&](std::uint64_t first, std::uint64_t count) {
      CHECK(end != first);
      for (std::uint64_t element = first; element < first + count; ++element) found.push_back(element);
      end = first + count;
    });
    CHECK(found == elements_of(tensor, slice));
    CHECK(found.size() == element_count(slice));
  }
}

TEST_CASE("writers: slices of bfloat16 are rounded from floats, and of other sizes refused") {
  PublicationName name;
  const BundleSpec spec{.name = name.text(),
                        .tensors = {{.name = "h", .dtype = DType::kBFloat16, .shape = {2, 4}}},
                        .subscribers = 1,
                        .writers = 1};
  Publisher publisher(spec, {.plan = {{{0, {0, 2}, {2, 2}}, {0, {0, 0}, {2, 2}}}}});
  const std::vector<float> right = {1, 2, 3, 1.00390625F}, left = {5, 6, 7, 8};
  CHECK(publisher.publish_slices(
            [&](std::uint32_t slice, Publisher::SliceOutput& out) { out.write_floats(slice == 0 ? right : left); },
            1) == 1);
  const Generation generation = Subscriber(name.text()).read();
  const std::span<const std::uint16_t> bits = generation.values<std::uint16_t>(0);
  const std::vector<std::uint16_t> expected = {0x40a0, 0x40c0, 0x3f80, 0x4000, 0x40e0, 0x4100, 0x4040, 0x3f80};
  CHECK(std::vector<std::uint16_t>(bits.begin(), bits.end()) == expected);

  const auto publish = [&](const std::function<void(Publisher::SliceOutput&)>& write) {
    publisher.publish_slices([&](std::uint32_t, Publisher::SliceOutput& out) { write(out); }, 2);
  };
  CHECK_THROWS_WITH_AS(publish([&](auto& out) { out.write_floats(std::span(left).first(3)); }),
                       "a slice of tensor 'h' has 4 elements, not 3", Error);
  CHECK_THROWS_WITH_AS(publish([&](auto& out) { out.write(std::as_bytes(std::span(left))); }),
                       "a slice of tensor 'h' has 8 bytes, not 16", Error);
  CHECK_THROWS_WITH_AS(publish([](auto&) {}), doctest::Contains("slice 0 of writer 0 was not written"), Error);
  CHECK(publisher.generation() == 1);
}

TEST_CASE("writers: a tensor without elements needs no slice") {
  const PublicationName name;
  const BundleSpec spec{.name = name.text(),
                        .tensors = {{.name = "none", .shape = {0, 3}}, {.name = "w", .shape = {2}}},
                        .subscribers = 1,
                        .records = 2,
                        .writers = 1};
  CHECK_THROWS_AS(Publisher(spec, {.plan = {{{0, {0, 0}, {0, 3}}, {1, {0}, {2}}}}}), Error);
  Publisher publisher(spec, {.plan = {{{1, {0}, {2}}}}});
  const std::vector<float> values = {1, 2};
  CHECK(publisher.publish_slices([&](std::uint32_t, Publisher::SliceOutput& out) { out.write_floats(values); }, 1) ==
        1);
  Subscriber subscriber(name.text());
  const Generation generation = subscriber.read();
  CHECK(generation.tensor(0).empty());
  CHECK(generation.values<float>(1)[1] == 2.0F);
}

TEST_CASE("writers: plans that lack elements, have some twice, or do not fit are refused") {
  Sharded all;
  const auto refused = [&](const char* why) {
    CHECK_THROWS_WITH_AS(all.writer(0), doctest::Contains(why), Error);
    CHECK(!all.name.exists());
  };
  all.plan[1].clear();
  refused("the slices have 24 of the 30 elements of tensor 'w'");
  all.plan[1] = {{0, {0, 2}, {6, 2}}};
  refused("slices of writers 1 and 2 overlap in tensor 'w'");
  all.plan[1] = {{0, {0, 4}, {6, 2}}};
  refused("the slice of writer 1 from (0, 4) on, of (6, 2), is no part of tensor 'w', which has the shape (6, 5)");
  all.plan[1] = {{0, {0, 2}, {6, ~std::uint64_t{0}}}};
  refused("is no part of tensor 'w'");
  all.plan[1] = {{0, {2}, {1}}};
  refused("is no part of tensor 'w'");
  all.plan[1] = {{3, {0}, {1}}};
  refused("writer 1 has a slice of tensor 3, and there are 3 tensors");
  all.plan.pop_back();
  refused("has 3 writers, and slices of 2");
  all.spec.writers = 63;
  refused("at most 62 are possible");
  Sharded other;
  CHECK_THROWS_WITH_AS(other.writer(3), doctest::Contains("has no writer 3: writers are 0 to 2"), Error);
}

TEST_CASE("writers: another plan and a second writer of the same number are refused while the publication is used") {
  Sharded all;
  std::optional<Publisher> one = all.writer(0);
  CHECK_THROWS_WITH_AS(all.writer(0), doctest::Contains("has a writer 0; it is in use by"), Error);
  Sharded other;
  other.spec.name = all.spec.name;
  std::swap(other.plan[0], other.plan[1]);
  CHECK_THROWS_WITH_AS(other.writer(1), doctest::Contains("has other slices of its writers"), Error);
  CHECK_THROWS_WITH_AS(Publisher({.name = all.spec.name, .tensors = all.spec.tensors, .subscribers = 2, .records = 3},
                                 {.wait = Seconds(kHasty)}),
                       doctest::Contains("has a publisher; it is in use by"), Error);
  {
    const Publisher two = all.writer(1);  // what was refused keeps nothing
  }
  one.reset();
  CHECK_NOTHROW(other.writer(1));  // nobody uses the publication of the first plan
}
