#include "train/data/batch_stream.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "ps_shm/errors.hpp"
#include "support/processes.hpp"
#include "train/data/prefetch_ring.hpp"

namespace {

using ps_shm::train::Batch;
using ps_shm::train::BatchStream;
using ps_shm::train::Dataset;

// Example i has the pixels i and -i and the label i mod 251, so each example in a batch can be identified.
Dataset numbered(std::size_t count) {
  Dataset data;
  data.count = count;
  data.features = 2;
  data.classes = 251;
  for (std::size_t i = 0; i < count; ++i) {
    data.images.push_back(static_cast<float>(i));
    data.images.push_back(-static_cast<float>(i));
    data.labels.push_back(static_cast<std::uint8_t>(i % 251));
  }
  return data;
}

std::vector<std::size_t> take(BatchStream& stream, std::size_t batch_size, std::size_t batches) {
  std::vector<std::size_t> examples;
  for (std::size_t i = 0; i < batches; ++i) {
    const Batch batch = stream.next();
    REQUIRE(batch.count == batch_size);
    REQUIRE(batch.labels.size() == batch_size);
    REQUIRE(batch.images.size() == batch_size * 2);
    for (std::size_t j = 0; j < batch_size; ++j) {
      const auto example = static_cast<std::size_t>(batch.images[2 * j]);
      REQUIRE(batch.images[2 * j + 1] == -batch.images[2 * j]);
      REQUIRE(batch.labels[j] == example % 251);
      examples.push_back(example);
    }
  }
  return examples;
}

std::vector<std::size_t> take(const Dataset& data, std::size_t batch_size, std::size_t batches, std::uint64_t seed,
                              unsigned rank) {
  BatchStream stream(data, batch_size, seed, rank);
  return take(stream, batch_size, batches);
}

void check_epochs(const std::vector<std::size_t>& examples, std::size_t count) {
  std::vector<std::size_t> all(count);
  std::iota(all.begin(), all.end(), std::size_t{0});
  for (std::size_t first = 0; first + count <= examples.size(); first += count) {
    const auto begin = examples.begin() + static_cast<std::ptrdiff_t>(first);
    CHECK(std::is_permutation(all.begin(), all.end(), begin));
  }
}

}  // namespace

TEST_CASE("batch stream: each epoch visits every example once, even if batches span its end") {
  const Dataset data = numbered(100);
  check_epochs(take(data, 10, 50, 1, 0), 100);
  check_epochs(take(data, 7, 100, 1, 0), 100);
}

TEST_CASE("batch stream: each epoch has its own order") {
  const auto examples = take(numbered(100), 100, 2, 1, 0);
  CHECK_FALSE(std::equal(examples.begin(), examples.begin() + 100, examples.begin() + 100));
}

TEST_CASE("batch stream: a batch larger than the data set continues into the next epochs") {
  check_epochs(take(numbered(5), 17, 10, 1, 0), 5);
  CHECK(take(numbered(1), 4, 2, 1, 0) == std::vector<std::size_t>(8, 0));
}

TEST_CASE("batch stream: the order does not depend on the batch size") {
  const Dataset data = numbered(50);
  CHECK(take(data, 6, 30, 3, 1) == take(data, 20, 9, 3, 1));
}

TEST_CASE("batch stream: equal seeds and ranks give the same stream, different ones give different streams") {
  const Dataset data = numbered(100);
  const auto examples = take(data, 10, 20, 1, 2);
  CHECK(examples == take(data, 10, 20, 1, 2));
  CHECK(examples != take(data, 10, 20, 1, 1));
  CHECK(examples != take(data, 10, 20, 2, 2));
  CHECK(examples != take(data, 10, 20, 2, 1));
}

TEST_CASE("batch stream: the order is the same on every platform") {
  CHECK(take(numbered(10), 10, 1, 42, 0) == std::vector<std::size_t>{2, 0, 4, 7, 8, 3, 5, 1, 9, 6});
}

TEST_CASE("batch stream: each position of the first epoch is equally likely to hold any example") {
  const Dataset data = numbered(4);
  std::vector<int> first(4, 0);
  for (unsigned rank = 0; rank < 1000; ++rank) ++first[take(data, 1, 1, 7, rank)[0]];
  // The standard deviation of each count is 14; the limit is five of them.
  for (const int count : first) CHECK(std::abs(count - 250) < 70);
}

TEST_CASE("batch stream: a batch is unchanged until the next one is requested") {
  const Dataset data = numbered(1000);
  BatchStream stream(data, 10, 1, 0);
  for (int i = 0; i < 5; ++i) {
    const Batch batch = stream.next();
    const std::vector<float> before(batch.images.begin(), batch.images.end());
    std::this_thread::yield();  // the following batches may be gathered now
    CHECK(std::equal(before.begin(), before.end(), batch.images.begin()));
  }
}

TEST_CASE("prefetch ring: a slot that was handed out is refilled after the next call, not before") {
  constexpr std::size_t kSlots = 3;
  std::array<std::atomic<std::size_t>, kSlots> fillings{};
  std::atomic<std::size_t> filled{0};
  ps_shm::train::PrefetchRing ring(kSlots, [&](std::size_t slot) {
    ++fillings[slot];
    ++filled;
  });
  for (std::size_t k = 0; k < 20; ++k) {
    const std::size_t slot = ring.next();
    CHECK(slot == k % kSlots);
    CHECK(ps_shm::test::eventually([&] { return filled == k + kSlots; }));  // the others are full
    CHECK(fillings[slot] == k / kSlots + 1);
  }
}

TEST_CASE("prefetch ring: an exception from filling a slot is rethrown by the call for that slot") {
  std::size_t fillings = 0;
  ps_shm::train::PrefetchRing ring(2, [&](std::size_t) {
    if (++fillings == 3) throw std::runtime_error("no memory");
  });
  CHECK(ring.next() == 0);
  CHECK(ring.next() == 1);
  CHECK_THROWS_WITH(ring.next(), "no memory");
}

TEST_CASE("batch stream: it can be destroyed at once, half-used or idle") {
  const Dataset data = numbered(1000);
  for (int i = 0; i < 50; ++i) BatchStream(data, 100, 1, 0);
  for (std::size_t batches = 0; batches < 10; ++batches) take(data, 100, batches, 1, 0);
}

TEST_CASE("batch stream: an empty data set and invalid batch sizes are refused") {
  const Dataset data = numbered(3);
  const Dataset empty;
  CHECK_THROWS_WITH_AS(BatchStream(empty, 1, 1, 0), doctest::Contains("the data set is empty"), ps_shm::Error);
  CHECK_THROWS_WITH_AS(BatchStream(data, 0, 1, 0), doctest::Contains("batch size 0"), ps_shm::Error);
  CHECK_THROWS_WITH_AS(BatchStream(data, SIZE_MAX, 1, 0), doctest::Contains("expected 1 to"), ps_shm::Error);
}
