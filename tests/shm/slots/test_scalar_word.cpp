// The word of an in-place variable of one element: its place, its counter, atomic and Hogwild! pushes.
#include <doctest/doctest.h>

#include <limits>

#include "support/test_job.hpp"
#include "update/elements.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::TestJob;

namespace {

float add(float value, float delta) { return value + delta; }

struct OneScalar {
  TestJob job;
  VariableShm& record = job.declare("v", 1, 3, Layout::kInplace);
  InplaceVariable variable{job.segments.shard_data(0), record};
  AtomicShm<std::uint64_t>& word = job.word(record, 0);
};

}  // namespace

TEST_CASE("in-place scalar: it is in its counter's word, its first value with no push counted") {
  const OneScalar t;
  CHECK(t.record.data_offset == t.record.words_offset);
  CHECK(t.variable.elements()[0] == 3);
  CHECK(t.variable.pushes(0) == 0);
  CHECK(t.word.load_acquire() == make_scalar(0, 3));
}

TEST_CASE("in-place scalar: what is declared after it lies after its word") {
  OneScalar t;
  const VariableShm& next = t.job.declare("w", 5, 7, Layout::kInplace);
  CHECK(next.words_offset >= t.record.words_offset + sizeof(PieceWordShm));
  t.variable.push_scalar(1, Adds::kExact, add);
  const InplaceVariable other(t.job.segments.shard_data(0), next);
  CHECK(other.pushes(0) == 0);
  for (int i = 0; i < 5; ++i) CHECK(other.elements()[i] == 7);
}

TEST_CASE("in-place scalar: a push changes and counts, a pull gives both, atomic and Hogwild!, as a block or not") {
  for (const Adds adds : {Adds::kExact, Adds::kRacy}) {
    OneScalar t;
    const float two = 2;
    CHECK(t.variable.push_scalar(2, adds, add) == 0);
    CHECK(t.variable.push_block(0, &two, adds, add) == 1);
    CHECK(t.variable.push_scalar(-10, adds, add) == 2);
    float out = 0;
    CHECK(t.variable.pull_scalar(out) == 3);
    CHECK(out == -3);
    out = 0;
    CHECK(t.variable.pull_block(0, &out, update::FirstFloat{}) == 3);
    CHECK(out == -3);
    CHECK(t.variable.pushes(0) == 3);
  }
}

TEST_CASE("in-place scalar: the counter wraps around without affecting the value, atomic and Hogwild!") {
  for (const Adds adds : {Adds::kExact, Adds::kRacy}) {
    OneScalar t;
    t.word.store_release(make_scalar(0xfffffffe, -0.5F));
    CHECK(t.variable.push_scalar(1, adds, add) == 0xfffffffe);
    CHECK(t.variable.push_scalar(1, adds, add) == 0xffffffff);
    CHECK(t.variable.push_scalar(1, adds, add) == 0);
    CHECK(t.word.load_acquire() == make_scalar(1, 2.5F));
  }
}

TEST_CASE("in-place scalar: a value that does not equal itself is pushed to once, too") {
  for (const float first : {std::nanf(""), std::numeric_limits<float>::infinity(), -0.0F}) {
    OneScalar t;
    t.word.store_release(make_scalar(0, first));
    CHECK(t.variable.push_scalar(1, Adds::kExact, add) == 0);
    CHECK(t.variable.push_scalar(std::nanf(""), Adds::kExact, add) == 1);
    float out = 0;
    CHECK(t.variable.pull_scalar(out) == 2);
    CHECK(std::isnan(out));
  }
}

TEST_CASE("in-place scalar: an update that others overtake is applied once, to the newer value") {
  OneScalar t;
  int calls = 0;
  const std::uint64_t before = t.variable.push_scalar(1, Adds::kExact, [&](float value, float delta) {
    if (++calls <= 3) t.variable.push_scalar(100, Adds::kExact, add);
    return value + delta;
  });
  CHECK(calls == 4);
  CHECK(before == 3);
  CHECK(t.word.load_acquire() == make_scalar(4, 304));
}
