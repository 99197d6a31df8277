// Accumulators (reduce atomic): the sum and its set of contributors always agree, whichever processes die, succeed
// others or arrive late.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/worker.hpp"
#include "shm/slots/recovery.hpp"
#include "support/conservation.hpp"
#include "support/test_job.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::TestJob;

namespace {

using Ranks = std::vector<std::uint32_t>;

// An accumulator of two chunks, and the ranks that add to it.
struct Scene {
  TestJob job{{.chunk_bytes = 1024}};
  VariableShm& record = job.declare("sum", 300);
  VersionedVariable sum = job.versioned(record);
  std::vector<FreeBuffers> free_buffers;

  Scene() {
    REQUIRE(sum.chunks() >= 2);
    for (std::uint32_t rank = 0; rank < job.segments.ranks(); ++rank) free_buffers.emplace_back(job.segments, rank);
  }

  ContributeResult add(std::uint32_t rank, std::uint64_t step, float value, bool again = false,
                       std::uint64_t chunk = 0) {
    const std::uint64_t count = sum.chunk_size(chunk);
    return sum.contribute(chunk, free_buffers[rank], {rank, step}, again, [=](float* out, const float* in) {
      for (std::uint64_t i = 0; i < count; ++i) out[i] = (in == nullptr ? 0 : in[i]) + value;
    });
  }

  struct Sum {
    int calls = 0;
    float value = 0;
    bool is_even = true;  // all elements are equal
    Ranks ranks;
  };
  Sum read(std::uint64_t step, std::uint64_t chunk = 0) const {
    Sum found;
    CHECK(sum.try_use_sum(chunk, step, [&](const float* values, const RankSet& ranks) {
      ++found.calls;
      found.value = values[0];
      for (std::uint64_t i = 0; i < sum.chunk_size(chunk); ++i) found.is_even = found.is_even && values[i] == values[0];
      for (std::uint32_t rank = 0; rank < kMaxRanks; ++rank)
        if (ranks.contains(rank)) found.ranks.push_back(rank);
    }));
    return found;
  }
  RankSet set(const Ranks& ranks) const {
    RankSet all;
    for (const std::uint32_t rank : ranks) all.insert(rank);
    return all;
  }
  bool conserved() const { return test::is_conserved(job.segments, {&record}); }
};

}  // namespace

TEST_CASE("accumulator: it is empty at first, for every step") {
  const Scene scene;
  CHECK(scene.read(0).calls == 0);
  CHECK(scene.read(5).calls == 0);
  CHECK_FALSE(scene.sum.has_sum(0, 0, scene.set({0, 1})));
}

TEST_CASE("accumulator: the sum and the set of contributors agree") {
  Scene scene;
  for (const std::uint32_t rank : {3U, 0U, 7U}) {
    CHECK(scene.add(rank, 4, float(1 << rank)) == ContributeResult::kAdded);
    const Scene::Sum now = scene.read(4);
    float expected = 0;
    for (const std::uint32_t in : now.ranks) expected += float(1 << in);
    CHECK(now.value == expected);
    CHECK(now.is_even);
  }
  CHECK(scene.read(4).ranks == Ranks{0, 3, 7});
  CHECK(scene.conserved());
}

TEST_CASE("accumulator: the first contribution of a step replaces the sum of the previous step") {
  Scene scene;
  scene.add(0, 0, 100);
  scene.add(1, 0, 100);
  CHECK(scene.add(1, 1, 5) == ContributeResult::kAdded);
  CHECK(scene.read(1).value == 5);
  CHECK(scene.read(1).ranks == Ranks{1});
  CHECK(scene.read(0).calls == 0);
}

TEST_CASE("accumulator: steps may be skipped") {
  Scene scene;
  scene.add(0, 2, 1);
  CHECK(scene.add(0, 1000, 3) == ContributeResult::kAdded);
  CHECK(scene.read(1000).value == 3);
  CHECK(scene.read(999).calls == 0);
}

TEST_CASE("accumulator: a successor of the same rank does not add twice") {
  Scene scene;
  scene.add(2, 0, 1);
  CHECK(scene.add(2, 0, 10) == ContributeResult::kAlreadyIn);
  CHECK(scene.read(0).value == 1);
  CHECK(scene.add(2, 0, 10, false, 1) == ContributeResult::kAdded);  // the predecessor had not added to this chunk
  CHECK(scene.read(0, 1).value == 10);
  CHECK(scene.conserved());
}

TEST_CASE("accumulator: a second push of the same worker in one step is added, and counts once") {
  Scene scene;
  scene.add(1, 0, 1);
  CHECK(scene.add(1, 0, 2, true) == ContributeResult::kAdded);
  CHECK(scene.read(0).value == 3);
  CHECK(scene.read(0).ranks == Ranks{1});
}

TEST_CASE("accumulator: too late a contribution does not change the sum of a later step") {
  Scene scene;
  scene.add(0, 5, 7);
  for (const bool again : {false, true})
    for (const std::uint64_t step : {0, 3, 4}) CHECK(scene.add(1, step, 100, again) == ContributeResult::kTooLate);
  CHECK(scene.read(5).value == 7);
  CHECK(scene.read(5).ranks == Ranks{0});
  CHECK(scene.conserved());
}

TEST_CASE("accumulator: a late contribution to a step whose sum still exists is added to that sum, not to the next") {
  Scene scene;
  scene.add(0, 5, 7);
  CHECK(scene.add(1, 5, 100) == ContributeResult::kAdded);
  scene.add(0, 6, 8);
  CHECK(scene.read(6).value == 8);
  CHECK(scene.read(6).ranks == Ranks{0});
}

TEST_CASE("accumulator: whether a sum exists depends only on the ranks in the decision") {
  Scene scene;
  scene.add(3, 0, 1);
  CHECK(scene.sum.has_sum(0, 0, scene.set({0, 3})));
  CHECK_FALSE(scene.sum.has_sum(0, 0, scene.set({0, 1})));
  CHECK_FALSE(scene.sum.has_sum(0, 1, scene.set({3})));
  CHECK_FALSE(scene.sum.has_sum(1, 0, scene.set({3})));
}

TEST_CASE("accumulator: ranks in different words of the set are kept apart") {
  TestJob job({.max_workers = kMaxRanks});
  VariableShm& record = job.declare("sum", 10);
  VersionedVariable sum = job.versioned(record);
  const Ranks all = {0, 63, 64, 127, 128, 191, 192, 255};
  for (const std::uint32_t rank : all) {
    FreeBuffers free_buffers(job.segments, rank);
    CHECK(sum.contribute(0, free_buffers, {rank, 0}, false, [](float* out, const float* in) {
      *out = (in == nullptr ? 0 : *in) + 1;
    }) == ContributeResult::kAdded);
  }
  Ranks found;
  CHECK(sum.try_use_sum(0, 0, [&](const float* value, const RankSet& set) {
    CHECK(*value == 8);
    for (std::uint32_t rank = 0; rank < kMaxRanks; ++rank)
      if (set.contains(rank)) found.push_back(rank);
  }));
  CHECK(found == all);
}

TEST_CASE("accumulator: a sum that is replaced while it is being used is used again") {
  Scene scene;
  scene.add(0, 0, 1);
  const bool whole = scene.sum.try_use_sum(0, 0, [&](const float*, const RankSet&) {
    // Uses every free buffer of rank 1 once, so that the buffer that is being read is overwritten.
    for (std::uint32_t i = 0; i <= kFreeBuffersPerClass; ++i) scene.add(1, 0, 1, true);
  });
  CHECK_FALSE(whole);
}

TEST_CASE("accumulator: a concurrent contribution does not change the sum that is being used") {
  Scene scene;
  scene.add(0, 0, 1);
  float after = 0;
  CHECK(scene.sum.try_use_sum(0, 0, [&](const float* values, const RankSet& ranks) {
    scene.add(1, 0, 10);
    after = values[0];
    CHECK_FALSE(ranks.contains(1));
  }));
  CHECK(after == 1);
  CHECK(scene.read(0).value == 11);
}

TEST_CASE("accumulator: a worker killed before its swap has added nothing, one killed after it has added once") {
  for (const bool swapped : {false, true}) {
    CAPTURE(swapped);
    Scene scene;
    scene.add(0, 0, 1);
    const std::uint64_t old = scene.job.word(scene.record, 0).load_acquire();
    const FreeBuffer free_buffer =
        scene.free_buffers[2].begin(scene.record, scene.record.first_chunk, old, buffer_of(old));
    BufferHeaderShm& out = scene.job.buffer(scene.record, free_buffer.buffer);
    out.stamp.store_release(kBuilding);
    if (swapped) {
      auto* values = reinterpret_cast<float*>(&out + 1);
      std::fill_n(values, scene.sum.chunk_size(0), 1.0F + 4.0F);
      out.included_steps.store_relaxed(1);
      out.contributors.bits[0].store_relaxed(1 | 4);
      const std::uint64_t next = make_word(version_of(old) + 1, free_buffer.buffer);
      out.stamp.store_release(make_stamp(scene.record.first_chunk, version_of(next)));
      std::uint64_t expected = old;
      REQUIRE(scene.job.word(scene.record, 0).try_exchange_acq_rel(expected, next));
    }
    scene.add(1, 0, 2);
    {
      JobSegments successor = scene.job.attach();
      REQUIRE(successor.locks().try_take(kRankByte + 2));
      recover_buffers(successor, 2, successor.locks());
    }
    CHECK(scene.conserved());
    CHECK(scene.read(0).value == (swapped ? 7.0F : 3.0F));
    CHECK(scene.add(2, 0, 4) == (swapped ? ContributeResult::kAlreadyIn : ContributeResult::kAdded));
    CHECK(scene.read(0).value == 7.0F);
    CHECK(scene.read(0).ranks == Ranks{0, 1, 2});
    CHECK(scene.conserved());
  }
}

TEST_CASE("accumulator: a variable and its accumulator share a buffer class but never a buffer") {
  TestJob job({.chunk_bytes = 1024});
  VariableShm& values = job.declare("v", 300);
  VariableShm& sums = job.declare("s", 300);
  REQUIRE(values.buffer_class == sums.buffer_class);
  VersionedVariable variable = job.versioned(values), sum = job.versioned(sums);
  FreeBuffers free_buffers(job.segments, 0);
  float total = 0;
  for (std::uint64_t step = 0; step < 50; ++step) {
    const auto add = [&](float* out, const float* in) {
      for (std::uint64_t i = 0; i < sum.chunk_size(0); ++i) out[i] = (in == nullptr ? 0 : in[i]) + float(step);
    };
    REQUIRE(sum.contribute(0, free_buffers, {0, step}, false, add) == ContributeResult::kAdded);
    REQUIRE(variable.apply_step(0, step, free_buffers, {0, step}, [&](float* out, const float* in, ChunkPast) {
      return sum.try_use_sum(0, step, [&](const float* s, const RankSet&) {
        for (std::uint64_t i = 0; i < variable.chunk_size(0); ++i) out[i] = in[i] + s[i];
      });
    }) == StepResult::kApplied);
    total += float(step);
    CHECK(test::is_conserved(job.segments, {&values, &sums}));
  }
  std::vector<float> out(variable.chunk_size(0));
  std::uint64_t retries = 0;
  variable.pull_chunk(0, out.data(), retries);
  CHECK(out == std::vector<float>(out.size(), total));
}

TEST_CASE("accumulator: if the declarer dies before creating it, the others wait until it is declared again") {
  TestJob job({.mode = Mode::kSync});
  const VariableSpec spec{.name = "v", .shape = {10}, .rule = UpdateRule::kAdd};
  Directory(job.segments)
      .declare(spec, 0, kRankByte + 1);  // a rank that nobody holds; no accumulator: reduce is ordered
  test::alter_setting(job.segments, "reduce", "atomic");
  Worker worker({.job = job.name.text(), .log = [](const std::string&) {}});
  CHECK_THROWS_AS(worker.variable("v", Seconds(0.05)), Error);
  const Variable variable =
      worker.variable(spec, [](std::span<float> out) { std::fill(out.begin(), out.end(), 1.0F); });
  worker.push(variable, std::vector<float>(10, 1.0F));
  worker.step();
  std::vector<float> out(10);
  worker.pull(variable, out);
  CHECK(out == std::vector<float>(10, 2.0F));
}
