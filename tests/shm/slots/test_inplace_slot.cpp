// In-place slots: every alignment and length, blocks and their counters.
#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include "support/test_job.hpp"
#include "update/elements.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::TestJob;

namespace {

float add(float value, float delta) { return value + delta; }

// Updates `count` floats at `offset` floats after a 16-byte boundary; returns how many floats in and around them are
// wrong.
template <class UpdateAll>
int wrong_after(std::size_t offset, std::size_t count, UpdateAll&& update_all) {
  constexpr std::size_t kFloats = 24;
  alignas(16) float values[kFloats];
  float gradient[kFloats];
  for (std::size_t i = 0; i < kFloats; ++i) values[i] = float(i), gradient[i] = float(100 * (i + 1));
  update_all(values + offset, gradient, count);
  int wrong = 0;
  for (std::size_t i = 0; i < kFloats; ++i) {
    const bool updated = i >= offset && i < offset + count;
    wrong += values[i] != float(i) + (updated ? float(100 * (i - offset + 1)) : 0);
  }
  return wrong;
}

struct OneVariable {
  TestJob job;
  VariableShm& record;
  InplaceVariable variable;
  std::vector<float> ones;

  explicit OneVariable(std::uint64_t elements)
      : record(job.declare("v", elements, 3, Layout::kInplace)),
        variable(job.segments.shard_data(0), record),
        ones(record.piece_elements, 1) {}
};

}  // namespace

TEST_CASE("in-place slot: an atomic update changes its elements, and no others, at every alignment and length") {
  for (std::size_t offset = 0; offset < 4; ++offset)
    for (std::size_t count = 0; count < 10; ++count) {
      CAPTURE(offset);
      CAPTURE(count);
      CHECK(wrong_after(offset, count, [](float* target, const float* gradient, std::size_t size) {
              update_exact(target, gradient, size, add);
            }) == 0);
    }
}

TEST_CASE("in-place slot: a Hogwild! update without concurrency is exact too") {
  for (std::size_t offset = 0; offset < 4; ++offset)
    for (std::size_t count = 0; count < 10; ++count) {
      CAPTURE(offset);
      CAPTURE(count);
      CHECK(wrong_after(offset, count, [](float* target, const float* gradient, std::size_t size) {
              update_racy(target, gradient, size, add);
            }) == 0);
    }
}

TEST_CASE("in-place slot: a failed compare-exchange of 16 bytes changes nothing and returns the current bytes" *
          doctest::skip(!kHas16ByteExchange)) {
  alignas(16) std::uint64_t target[2] = {1, 2};
  const std::uint64_t desired[2] = {8, 9};
  std::uint64_t expected[2] = {1, 3};
  CHECK_FALSE(try_exchange_16(target, expected, desired));
  CHECK(target[0] == 1);
  CHECK(target[1] == 2);
  CHECK(expected[0] == 1);
  CHECK(expected[1] == 2);
  CHECK(try_exchange_16(target, expected, desired));
  CHECK(target[0] == 8);
  CHECK(target[1] == 9);
}

TEST_CASE("in-place slot: blocks cover the variable, the last one holds the remainder") {
  for (const std::uint64_t elements : {1, 4095, 4096, 4097, 10'000}) {
    const OneVariable t(elements);
    std::uint64_t next = 0;
    for (std::uint64_t block = 0; block < t.variable.blocks(); ++block) {
      CHECK(t.variable.block_begin(block) == next);
      CHECK(t.variable.block_size(block) > 0);
      next += t.variable.block_size(block);
    }
    CHECK(next == elements);
  }
}

TEST_CASE("in-place slot: a push changes its block and its counter") {
  for (const Adds adds : {Adds::kExact, Adds::kRacy}) {
    OneVariable t(10'000);
    CHECK(t.variable.push_block(1, t.ones.data(), adds, add) == 0);
    CHECK(t.variable.push_block(1, t.ones.data(), adds, add) == 1);
    CHECK(t.variable.pushes(0) == 0);
    CHECK(t.variable.pushes(1) == 2);
    const float* elements = t.variable.elements();
    const std::uint64_t begin = t.variable.block_begin(1), end = t.variable.block_begin(2);
    for (std::uint64_t i = 0; i < 10'000; ++i) REQUIRE(elements[i] == (i >= begin && i < end ? 5 : 3));
  }
}

TEST_CASE("in-place slot: a push of the last block does not change what follows the variable") {
  OneVariable t(4096 + 5);
  t.variable.elements()[4096 + 5] = 77;
  t.variable.push_block(1, t.ones.data(), Adds::kExact, add);
  CHECK(t.variable.elements()[4096 + 4] == 4);
  CHECK(t.variable.elements()[4096 + 5] == 77);
}

TEST_CASE("in-place slot: a pull gives the block and its number of pushes") {
  OneVariable t(10'000);
  t.variable.push_block(2, t.ones.data(), Adds::kExact, add);
  std::vector<float> out(t.variable.block_size(2) + 1, -1);
  CHECK(t.variable.pull_block(2, out.data(), update::FirstFloat{}) == 1);
  CHECK(out.front() == 4);
  CHECK(out[out.size() - 2] == 4);
  CHECK(out.back() == -1);
}
