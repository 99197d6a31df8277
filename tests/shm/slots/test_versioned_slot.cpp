// Versioned slots: the effects of one push, pull and sync step, and of a lost swap.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "support/conservation.hpp"
#include "support/test_job.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::TestJob;

namespace {

// Adds `delta` to the parameters of chunk `chunk`.
auto add(const VersionedVariable& variable, std::uint64_t chunk, float delta) {
  return [floats = variable.chunk_size(chunk), delta](float* out, const float* in, ChunkPast) {
    for (std::size_t i = 0; i < floats; ++i) out[i] = in[i] + delta;
    return true;
  };
}

struct Pulled {
  std::vector<float> values;
  std::uint64_t version = 0, retries = 0;
};

Pulled pull(const VersionedVariable& variable, std::uint64_t chunk) {
  Pulled pulled;
  pulled.values.resize(variable.chunk_size(chunk));
  pulled.version = variable.pull_chunk(chunk, pulled.values.data(), pulled.retries);
  return pulled;
}

bool all(const std::vector<float>& values, float value) {
  return std::all_of(values.begin(), values.end(), [&](float found) { return found == value; });
}

// A job with one variable of several chunks, the last one shorter.
struct OneVariable {
  TestJob job{{.chunk_bytes = 1024}};
  VariableShm& record = job.declare("v", 1000, 10);
  VersionedVariable variable = job.versioned(record);
  FreeBuffers free_buffers{job.segments, 0};
  std::uint64_t last = record.pieces - 1;

  SwapResult push(std::uint64_t chunk, float delta, UpdateLabel label = {}) {
    return variable.push_chunk(chunk, free_buffers, label, add(variable, chunk, delta));
  }
  BufferHeaderShm& current(std::uint64_t chunk) {
    return job.buffer(record, buffer_of(job.word(record, chunk).load_acquire()));
  }
};

}  // namespace

TEST_CASE("versioned slot: initial values are version 0 and include no step") {
  OneVariable t;
  REQUIRE(t.last > 0);
  CHECK(t.variable.chunk_size(t.last) < t.variable.chunk_size(0));
  for (const std::uint64_t chunk : {std::uint64_t{0}, t.last}) {
    const Pulled pulled = pull(t.variable, chunk);
    CHECK(pulled.version == 0);
    CHECK(all(pulled.values, 10));
    CHECK_FALSE(t.variable.includes(chunk, 0));
  }
}

TEST_CASE("versioned slot: initial values overwrite what an initialiser that died has left") {
  OneVariable t;
  std::vector<float> values(t.variable.chunk_size(t.last));
  std::iota(values.begin(), values.end(), 0.0F);
  t.variable.initialise_chunk(t.last, values);
  CHECK(pull(t.variable, t.last).values == values);
}

TEST_CASE("versioned slot: a push increments the version and returns the one it was applied to") {
  OneVariable t;
  CHECK(t.push(0, 1).version == 0);
  const SwapResult second = t.push(0, 1);
  CHECK(second.version == 1);
  CHECK(second.retries == 0);
  CHECK(t.variable.version(0) == 2);
}

TEST_CASE("versioned slot: a pull gives a push's values and their version") {
  OneVariable t;
  t.push(0, 5);
  const Pulled pulled = pull(t.variable, 0);
  CHECK(pulled.version == 1);
  CHECK(pulled.retries == 0);
  CHECK(all(pulled.values, 15));
}

TEST_CASE("versioned slot: a push does not change the other chunks") {
  OneVariable t;
  t.push(1, 5);
  CHECK(pull(t.variable, 0).version == 0);
  CHECK(all(pull(t.variable, 0).values, 10));
  CHECK(pull(t.variable, 2).version == 0);
}

TEST_CASE("versioned slot: optimizer slots are stored with the parameters") {
  TestJob job;
  VariableShm& record = job.declare("v", 100, 0, Layout::kVersioned, 1);
  VersionedVariable variable = job.versioned(record);
  FreeBuffers free_buffers(job.segments, 0);
  const std::size_t stride = record.piece_elements;
  for (int push = 0; push < 5; ++push)
    variable.push_chunk(0, free_buffers, {}, [&](float* out, const float* in, ChunkPast) {
      out[stride] = in[stride] + 1;  // the slot counts pushes
      out[0] = in[0] + out[stride];  // the parameter sums the counts
    });
  CHECK(pull(variable, 0).values[0] == 1 + 2 + 3 + 4 + 5);
}

TEST_CASE("versioned slot: the stamp of the current buffer has the chunk's number in the shard and the version") {
  OneVariable t;
  VariableShm& second = t.job.declare("w", 1000);
  VersionedVariable variable = t.job.versioned(second);
  variable.push_chunk(2, t.free_buffers, {}, add(variable, 2, 1));
  REQUIRE(second.first_chunk == t.record.pieces);
  const BufferHeaderShm& buffer = t.job.buffer(second, buffer_of(t.job.word(second, 2).load_acquire()));
  CHECK(buffer.stamp.load_relaxed() == make_stamp(second.first_chunk + 2, 1));
}

TEST_CASE("versioned slot: the label of the last push is in the buffer") {
  OneVariable t;
  t.push(0, 1, {.rank = 7, .step = 42});
  CHECK(t.current(0).writer.load_relaxed() == 7);
  CHECK(t.current(0).writer_step.load_relaxed() == 42);
}

TEST_CASE("versioned slot: a push that another one overtakes is applied once, to the newer values") {
  OneVariable t;
  FreeBuffers others(t.job.segments, 1);
  int calls = 0;
  const SwapResult result = t.variable.push_chunk(0, t.free_buffers, {}, [&](float* out, const float* in, ChunkPast) {
    if (++calls <= 3) t.variable.push_chunk(0, others, {}, add(t.variable, 0, 100));
    add(t.variable, 0, 1)(out, in, {});
  });
  CHECK(calls == 4);
  CHECK(result.retries == 3);
  CHECK(result.version == 3);
  CHECK(pull(t.variable, 0).version == 4);
  CHECK(all(pull(t.variable, 0).values, 311));
  CHECK(test::is_conserved(t.job.segments, {&t.record}));
}

TEST_CASE("versioned slot: the version wraps around after 2^40") {
  OneVariable t;
  const std::uint64_t word = make_word(kVersionMask - 1, buffer_of(t.job.word(t.record, 0).load_acquire()));
  t.current(0).stamp.store_relaxed(make_stamp(t.record.first_chunk, kVersionMask - 1));
  t.job.word(t.record, 0).store_release(word);
  CHECK(t.push(0, 1).version == kVersionMask - 1);
  CHECK(t.push(0, 1).version == kVersionMask);
  CHECK(t.push(0, 1).version == 0);
  CHECK(pull(t.variable, 0).version == 1);
  CHECK(all(pull(t.variable, 0).values, 13));
  CHECK(test::is_conserved(t.job.segments, {&t.record}));
}

TEST_CASE("versioned slot: a buffer that is being overwritten reads as torn, and so does another chunk's") {
  OneVariable t;
  std::vector<float> out(t.variable.chunk_size(0));
  REQUIRE(t.variable.try_pull_chunk(0, out.data()) == PullResult::kWhole);
  std::uint64_t stamp = kBuilding;
  SUBCASE("being filled") {}
  SUBCASE("a later version") { stamp = make_stamp(t.record.first_chunk, 1); }
  SUBCASE("another chunk at the same version") { stamp = make_stamp(t.record.first_chunk + 1, 0); }
  t.current(0).stamp.store_relaxed(stamp);
  CHECK(t.variable.try_pull_chunk(0, out.data()) == PullResult::kTorn);
}

TEST_CASE("versioned slot: a word that names a buffer beyond the shard is reported and not followed") {
  OneVariable t;
  std::vector<float> out(t.variable.chunk_size(0));
  t.job.word(t.record, 0).store_release(make_word(0, kBufferMask));
  CHECK(t.variable.try_pull_chunk(0, out.data()) == PullResult::kNoBuffer);
}

TEST_CASE("versioned slot: no number of a buffer beyond the shard is followed") {
  OneVariable t;
  std::vector<float> out(t.variable.chunk_size(0));
  const auto is_refused = [](auto&& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code() == ErrorCode::kDamaged;
    }
    return false;
  };
  const auto push = [&] { t.push(0, 1); };
  FreeBufferShm(&lists)[kFreeBuffersPerClass] =
      t.job.segments.free_buffer_table(0, 0).free_buffers[t.record.buffer_class - kMinClass];
  SUBCASE("in the word of a chunk") {
    t.job.word(t.record, 0).store_release(make_word(0, kBufferMask));
    CHECK(is_refused([&] { pull(t.variable, 0); }));
    CHECK(is_refused(push));
    CHECK(is_refused([&] { t.variable.apply_step(0, 0, t.free_buffers, {}, add(t.variable, 0, 1)); }));
    CHECK(is_refused([&] { static_cast<void>(t.variable.includes(0, 0)); }));
    CHECK(is_refused([&] { t.variable.pull_image(0, 0, out.data()); }));
    CHECK(is_refused([&] { static_cast<void>(t.variable.kept_by(0)); }));
    CHECK(is_refused([&] { static_cast<void>(t.variable.is_still_whole(0, t.variable.word(0))); }));
    CHECK(t.push(1, 1).version == 0);  // of another chunk
  }
  SUBCASE("in a pre-image field") {
    preimage_of(t.current(0)).store_relaxed(make_preimage(5, kBufferMask));
    CHECK(is_refused([&] { t.variable.pull_image(0, 5, out.data()); }));
  }
  SUBCASE("in a list of free buffers") {
    for (FreeBufferShm& free_buffer : lists) free_buffer.record.store_release(kValidFreeBuffer | kBufferMask);
    CHECK(is_refused(push));
    for (FreeBufferShm& free_buffer : lists) CHECK_FALSE(is_in_flight(free_buffer.record.load_acquire()));
  }
  SUBCASE("and a push ends if all free buffers are in flight") {
    for (FreeBufferShm& free_buffer : lists) free_buffer.record.store_release(kValidFreeBuffer | kFreeBufferInFlight);
    CHECK(is_refused(push));
  }
}

TEST_CASE("versioned slot: a buffer of a variable declared later is followed, since the shard's file has grown") {
  OneVariable t;
  JobSegments attached = t.job.attach();
  Directory directory(attached);
  VersionedVariable theirs(attached.shard(0), directory.at(directory.find("v")));
  CHECK(all(pull(theirs, 0).values, 10));  // its size is known now
  VariableShm& later = t.job.declare("w", 100'000, 10);
  VersionedVariable second = t.job.versioned(later);
  REQUIRE(later.buffer_class == t.record.buffer_class);
  for (std::uint64_t chunk = 0; chunk < later.pieces; ++chunk)  // its buffers become free ones of the lane
    second.push_chunk(chunk, t.free_buffers, {}, add(second, chunk, 1));
  for (int push = 0; push < 8; ++push) t.push(0, 1);
  CHECK(all(pull(theirs, 0).values, 18));
}

TEST_CASE("versioned slot: a sync step is applied once, even if others come later") {
  OneVariable t;
  FreeBuffers others(t.job.segments, 1);
  const auto apply = [&](FreeBuffers& free_buffers) {
    return t.variable.apply_step(0, 0, free_buffers, {}, add(t.variable, 0, 1));
  };
  CHECK(apply(t.free_buffers) == StepResult::kApplied);
  CHECK(apply(others) == StepResult::kAlreadyIncluded);
  CHECK(t.variable.includes(0, 0));
  CHECK_FALSE(t.variable.includes(0, 1));
  CHECK_FALSE(t.variable.includes(1, 0));
  CHECK(t.variable.version(0) == 1);
  CHECK(all(pull(t.variable, 0).values, 11));
}

TEST_CASE("versioned slot: a helper that another one overtakes applies nothing") {
  OneVariable t;
  FreeBuffers others(t.job.segments, 1);
  const StepResult result =
      t.variable.apply_step(0, 0, t.free_buffers, {}, [&](float* out, const float* in, ChunkPast) {
        t.variable.apply_step(0, 0, others, {}, add(t.variable, 0, 1));
        return add(t.variable, 0, 1)(out, in, {});
      });
  CHECK(result == StepResult::kAlreadyIncluded);
  CHECK(all(pull(t.variable, 0).values, 11));
  CHECK(test::is_conserved(t.job.segments, {&t.record}));
}

TEST_CASE("versioned slot: a push keeps the steps that a chunk includes") {
  OneVariable t;
  REQUIRE(t.variable.apply_step(0, 4, t.free_buffers, {}, add(t.variable, 0, 1)) == StepResult::kApplied);
  t.push(0, 1);
  CHECK(t.variable.includes(0, 4));
  CHECK_FALSE(t.variable.includes(0, 5));
}

TEST_CASE("versioned slot: many pushes of several ranks and variables of a class lose no buffer") {
  OneVariable t;
  VariableShm& second = t.job.declare("w", 900);
  REQUIRE(second.buffer_class == t.record.buffer_class);
  VersionedVariable other = t.job.versioned(second);
  std::vector<FreeBuffers> ranks;
  for (std::uint32_t rank = 0; rank < t.job.segments.ranks(); ++rank) ranks.emplace_back(t.job.segments, rank);
  for (std::uint32_t push = 0; push < 1000; ++push) {
    FreeBuffers& free_buffers = ranks[push * 7 % ranks.size()];
    VersionedVariable& target = push % 3 == 0 ? other : t.variable;
    target.push_chunk(push % target.chunks(), free_buffers, {}, add(target, push % target.chunks(), 1));
    if (push % 50 == 0) REQUIRE(test::is_conserved(t.job.segments, {&t.record, &second}));
  }
  CHECK(test::is_conserved(t.job.segments, {&t.record, &second}));
}

TEST_CASE("versioned slot: at another address the same pushes are visible and can continue") {
  OneVariable t;
  t.push(0, 1);
  JobSegments attached = t.job.attach();
  REQUIRE(attached.shard_data(0) != t.job.segments.shard_data(0));
  Directory directory(attached);
  VersionedVariable theirs(attached.shard(0), directory.at(directory.find("v")));
  FreeBuffers free_buffers(attached, 1);
  CHECK(theirs.push_chunk(0, free_buffers, {}, add(theirs, 0, 1)).version == 1);
  CHECK(all(pull(t.variable, 0).values, 12));
  CHECK(test::is_conserved(t.job.segments, {&t.record}));
}
