// The scenario of the interleaving tests: variables of one chunk, fibers that push, pull, help, contribute and recover
// through the real functions, and the invariants that are checked at the end of every execution.
//
// Watched are chunk words, stamps and data; the rank sets of accumulators in sync scenarios; and free-buffer records
// where a fiber recovers. Everything else in the segments is used by one fiber only or never changes.
#pragma once

#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "faults/explorer.hpp"
#include "shm/slots/recovery.hpp"
#include "support/conservation.hpp"
#include "support/test_job.hpp"

namespace ps_shm::test {

using namespace ps_shm::shm;

inline constexpr std::size_t kMaxFloats = 7, kMaxPushes = 12, kMaxReaders = 2, kMaxPulls = 2;
inline constexpr std::uint32_t kMaxSceneRanks = 3;

// Every push adds a power of two of its own, so a value tells which pushes are in it. What the fibers know of each
// chunk; remembered.
struct Log {
  std::uint32_t begun[2], acknowledged[2];         // pushes, as bits
  std::uint64_t applied_to[2][kMaxPushes];         // version + 1 by push; 0: unknown
  std::uint64_t next_free_buffer[kMaxSceneRanks];  // index of each rank's next free buffer
  struct Pull {
    std::uint32_t acknowledged, values;  // acknowledged before the pull; the result of the pull
    std::uint64_t version;
    std::uint32_t chunk, is_there;
  } pulls[kMaxReaders][kMaxPulls];
  float room[kMaxReaders][kMaxFloats + 1];    // buffers that pulls copy to
  std::uint32_t helped[kMaxSceneRanks];       // four bits per step: how often the rank applied the step
  std::uint64_t contributed[kMaxSceneRanks];  // the results of its contributions
};

struct Shape {
  std::uint64_t floats = 2;
  std::uint32_t variables = 1, ranks = 2;
  bool has_steps = false, is_recovered = false;
  bool has_snapshot_point = false;  // snapshot point 1 is open, and all pushes are after it
};

// Adds `delta` to each element, one access at a time.
struct Add {
  std::uint64_t floats;
  float delta;
  bool operator()(float* out, const float* in, std::uint64_t) const {
    for (std::size_t i = 0; i < floats; ++i) {
      float value = 0;
      if (in != nullptr) {
        shared_access(in + i, false);
        value = in[i];
      }
      shared_access(out + i, true);
      out[i] = value + delta;
    }
    return true;
  }
};

// One or two variables of one chunk each, their ranks' free buffers, and an explorer that watches them.
class Scene {
 public:
  explicit Scene(const Shape& shape) : shape_(shape) {
    for (std::uint32_t i = 0; i < shape.variables; ++i) {
      records_.push_back(&job.declare(i == 0 ? "v" : "w", shape.floats));
      variables_.push_back(job.versioned(*records_.back()));
    }
    std::uint64_t end = records_.back()->shard_end;
    Directory directory(job.segments);
    for (std::uint32_t i = 0; shape.has_snapshot_point && i < shape.variables; ++i)
      directory.reserve({i}, kSnapshotByte);
    if (shape.has_snapshot_point) end = directory.at(directory.count() - 1).shard_end;
    explorer.emplace(std::span(job.segments.shard_data(0), end));
    for (std::uint32_t i = 0; i < shape.variables; ++i) {
      explorer->remember(&job.word(*records_[i], 0));
      explorer->watch(&job.word(*records_[i], 0), Watch::kExchanged);
    }
    for (const auto& [number, names] : count_names(job.segments, records())) {
      BufferHeaderShm& buffer = job.buffer(*records_[0], number);
      explorer->remember(reinterpret_cast<std::byte*>(&buffer), sizeof buffer + shape.floats * sizeof(float));
      explorer->watch(&buffer.stamp, Watch::kWord);
      if (shape.has_steps) explorer->watch(&buffer.included_steps, Watch::kWord);
      if (shape.has_steps || shape.has_snapshot_point) explorer->watch(&buffer.contributors.bits[0], Watch::kWord);
      for (std::size_t i = 0; i < shape.floats; ++i)
        explorer->watch(reinterpret_cast<float*>(&buffer + 1) + i, Watch::kFloat);
    }
    for (std::uint32_t rank = 0; rank < shape.ranks; ++rank)
      for (std::uint32_t which = 0; which < kFreeBuffersPerClass; ++which) {
        FreeBufferShm& free_buffer = job.free_buffer(*records_[0], rank, which);
        explorer->remember(&free_buffer);
        if (!shape.is_recovered) continue;
        explorer->watch(&free_buffer.record, Watch::kWord);
        explorer->watch(&free_buffer.note_chunk, Watch::kWord);
        explorer->watch(&free_buffer.note_word, Watch::kWord);
        explorer->watch(&free_buffer.note_gain, Watch::kWord);
      }
    explorer->remember(&log);
  }

  Add add(float delta) const { return {shape_.floats, delta}; }

  using PushOnce = std::function<SwapResult(std::uint32_t variable, FreeBuffers& free_buffers, float delta)>;
  using PullOnce = std::function<std::uint64_t(std::uint32_t variable, float* out)>;
  PushOnce push_once = [this](std::uint32_t variable, FreeBuffers& free_buffers, float delta) {
    return variables_[variable].push_chunk(0, free_buffers, {.epoch = shape_.has_snapshot_point ? 1U : 0U}, add(delta));
  };
  PullOnce pull_once = [this](std::uint32_t variable, float* out) {
    std::uint64_t retries = 0;
    return variables_[variable].pull_chunk(0, out, retries);
  };

  using ApplyOnce = std::function<StepResult(std::uint64_t step, FreeBuffers& free_buffers, float delta)>;
  ApplyOnce apply_once = [this](std::uint64_t step, FreeBuffers& free_buffers, float delta) {
    return variables_[0].apply_step(0, step, free_buffers, {}, add(delta));
  };
  using Settle = std::function<void(std::uint32_t rank, const TaskLocks& locks)>;
  Settle settle = [this](std::uint32_t rank, const TaskLocks& locks) { recover_buffers(job.segments, rank, locks); };

  void push(std::uint32_t rank, FreeBuffers& free_buffers, std::uint32_t variable, std::uint32_t number) {
    const std::uint32_t bit = 1U << number;
    log.begun[variable] |= bit;
    const SwapResult result = push_once(variable, free_buffers, float(bit));
    log.applied_to[variable][number] = result.version + 1;
    log.acknowledged[variable] |= bit;
    log.next_free_buffer[rank] = (log.next_free_buffer[rank] + 1 + result.retries) % kFreeBuffersPerClass;
    explorer->forget();
  }

  // Adds a fiber that pushes to these variables, in this order. Each push has its own bit.
  void add_writer(std::uint32_t rank, std::vector<std::uint32_t> targets, const FiberOptions& options = {}) {
    const std::uint32_t first = next_bit_;
    next_bit_ += static_cast<std::uint32_t>(targets.size());
    explorer->add(
        [this, rank, targets, first] {
          FreeBuffers free_buffers(job.segments, rank);
          for (std::uint32_t i = 0; i < targets.size(); ++i) push(rank, free_buffers, targets[i], first + i);
        },
        options);
  }

  // Adds a fiber that recovers the state that the rank's last owner has left, and then pushes.
  void add_heir(std::uint32_t rank, const JobSegments& process, std::uint32_t pushes, FiberOptions options) {
    const std::uint64_t named = shape_.variables + job.segments.lanes() * kFreeBuffersPerClass;
    options.must_end = true;
    options.patience = 2 * (1 + 2 * named);  // two scans of all words and records
    const std::uint32_t first = next_bit_;
    next_bit_ += pushes;
    explorer->add(
        [this, rank, locks = process.locks(), pushes, first] {
          settle(rank, locks);
          explorer->forget();
          FreeBuffers free_buffers(job.segments, rank);
          log.next_free_buffer[rank] = 0;
          for (std::uint32_t i = 0; i < pushes; ++i) push(rank, free_buffers, 0, first + i);
        },
        options);
  }

  // Adds a fiber that applies sync steps 0 to `steps` - 1 to the first variable, as pushes with these numbers.
  void add_helper(std::uint32_t rank, std::uint32_t steps) {
    explorer->add([this, rank, steps] {
      FreeBuffers free_buffers(job.segments, rank);
      for (std::uint32_t step = 0; step < steps; ++step) {
        log.begun[0] |= 1U << step;
        log.helped[rank] +=
            apply_once(step, free_buffers, float(1U << step)) == StepResult::kApplied ? 1U << 4 * step : 0;
        log.acknowledged[0] |= 1U << step;
        log.applied_to[0][step] = step + 1;
        if (!variables_[0].includes(0, step)) explorer->fail("a step that was applied is not included");
      }
    });
  }

  void add_reader(std::uint32_t variable, std::uint32_t pulls) {
    const std::uint32_t reader = readers_++;
    explorer->add([this, reader, variable, pulls] {
      for (std::uint32_t i = 0; i < pulls; ++i) {
        Log::Pull& pull = log.pulls[reader][i];
        pull.acknowledged = log.acknowledged[variable];
        float* out = log.room[reader];
        pull.version = pull_once(variable, out);
        pull.values = static_cast<std::uint32_t>(out[0]), pull.chunk = variable, pull.is_there = 1;
        for (std::size_t k = 0; k < shape_.floats; ++k) {
          if (out[k] != float(pull.values)) explorer->fail("torn");
          out[k] = 0;
        }
        if (i > 0 && (pull.values & log.pulls[reader][i - 1].values) != log.pulls[reader][i - 1].values)
          explorer->fail("a later pull is older");
        explorer->forget();
      }
    });
  }

  // Adds a fiber that reads the pre-image of snapshot point 1, which contains no push.
  void add_image_reader(std::uint32_t variable, std::uint32_t looks) {
    const std::uint32_t reader = readers_++;
    explorer->add([this, reader, variable, looks] {
      for (std::uint32_t i = 0; i < looks; ++i) {
        float* out = log.room[reader];
        std::fill_n(out, shape_.floats, 1.0F);
        variables_[variable].pull_image(0, 1, out);
        for (std::size_t k = 0; k < shape_.floats; ++k)
          if (std::exchange(out[k], 0.0F) != 0) explorer->fail("a later push is in the image");
        explorer->forget();
      }
    });
  }

  // Adds a fiber that contributes to the sums of `steps` steps; with `again` twice, as a successor would that does not
  // know of the first contribution.
  void add_contributor(std::uint32_t rank, std::uint32_t steps, bool again) {
    explorer->add([this, rank, steps, again] {
      FreeBuffers free_buffers(job.segments, rank);
      for (std::uint32_t step = 0; step < steps; ++step)
        for (int time = 0; time < (again ? 2 : 1); ++time) {
          const auto sum = [&](float* out, const float* in) {
            Add{shape_.floats, float(1U << (rank + kMaxSceneRanks * step))}(out, in, 0);
          };
          const ContributeResult result = variables_[0].contribute(0, free_buffers, {rank, step}, false, sum);
          if (result == (time == 0 ? ContributeResult::kAlreadyIn : ContributeResult::kAdded))
            explorer->fail("in twice, or not in");
          log.contributed[rank] |= (std::uint64_t(result) + 1) << (4 * (2 * step + std::uint32_t(time)));
        }
    });
  }

  // Adds a fiber that reads the sum of step 0, and then that of step 1.
  void add_summer() {
    explorer->add([this] { check_sum(0), check_sum(1); });
  }

  void check_sum(std::uint64_t step) {
    float found[kMaxFloats] = {};
    RankSet ranks;
    const bool is_whole = variables_[0].try_use_sum(0, step, [&](const float* values, const RankSet& in) {
      ranks = in;
      for (std::size_t i = 0; i < shape_.floats; ++i) {
        shared_access(values + i, false);
        found[i] = values[i];
      }
    });
    std::uint32_t expected = 0;
    for (std::uint32_t rank = 0; rank < kMaxSceneRanks; ++rank)
      if (ranks.contains(rank)) expected += 1U << (rank + kMaxSceneRanks * step);
    for (std::size_t i = 0; i < shape_.floats && is_whole; ++i)
      if (found[i] != float(expected)) explorer->fail("sum and set disagree");
  }

  // Checks the invariants once all fibers have ended.
  std::function<void()> before_check = [] {};
  void check() {
    before_check();
    if (!is_conserved(job.segments, records())) explorer->fail("a buffer is lost or named twice");
    for (std::uint32_t i = 0; i < shape_.variables; ++i) {
      const std::uint64_t word = job.word(*records_[i], 0).load_acquire();
      const BufferHeaderShm& buffer = job.buffer(*records_[0], buffer_of(word));
      const auto* values = reinterpret_cast<const float*>(&buffer + 1);
      for (std::size_t k = 1; k < shape_.floats; ++k)
        if (values[k] != values[0]) explorer->fail("the current buffer is torn");
      check_version(i, version_of(word), static_cast<std::uint32_t>(values[0]), log.acknowledged[i]);
      if (buffer.stamp.load_relaxed() != make_stamp(records_[i]->first_chunk, version_of(word)))
        explorer->fail("the current buffer has another stamp");
    }
    std::uint32_t applied = 0, once = 0;
    for (const std::uint32_t by_rank : log.helped) applied += by_rank;
    for (std::uint32_t step = 0; log.acknowledged[0] >> step != 0; ++step) once |= 1U << 4 * step;
    if (applied != 0 && applied != once) explorer->fail("a step was not applied by just one helper");
    for (const auto& of_reader : log.pulls)
      for (const Log::Pull& pull : of_reader)
        if (pull.is_there != 0) check_version(pull.chunk, pull.version, pull.values, pull.acknowledged);
  }

  Explored explore() {
    explorer->at_end([this] { check(); });
    return explorer->explore();
  }

  std::vector<const VariableShm*> records() const { return {records_.begin(), records_.end()}; }
  VariableShm& record(std::uint32_t variable) { return *records_[variable]; }
  VersionedVariable& variable(std::uint32_t number) { return variables_[number]; }

  static JobConfig config(std::uint32_t ranks) {
    JobConfig config;
    config.workers = config.max_workers = ranks;
    return config;
  }

 private:
  // Checks that version `version` consists exactly of the pushes `values`: only pushes that were begun, all pushes in
  // `least`, and exactly those that were reported as applied up to this version.
  void check_version(std::uint32_t variable, std::uint64_t version, std::uint32_t values, std::uint32_t least) {
    if (std::uint64_t(std::popcount(values)) != version) explorer->fail("version and value disagree");
    if ((values & ~log.begun[variable]) != 0) explorer->fail("a value that nobody has pushed");
    if ((least & ~values) != 0) explorer->fail("an acknowledged push is missing");
    for (std::uint32_t number = 0; number < kMaxPushes; ++number)
      if (const std::uint64_t after = log.applied_to[variable][number];
          after != 0 && (after <= version) != ((values >> number & 1) != 0))
        explorer->fail("a push is not where it was told to be");
  }

  Shape shape_;

 public:
  TestJob job{config(shape_.ranks)};
  Log log = {};
  std::optional<Explorer> explorer;

 private:
  std::vector<VariableShm*> records_;
  std::vector<VersionedVariable> variables_;
  std::uint32_t next_bit_ = 0, readers_ = 0;
};

// Ranks 0 and 1 have processes that hold their bytes; when that of rank 0 dies, its successor already has the byte.
struct KillScene : Scene {
  JobSegments successor = job.attach(), living = job.attach();

  explicit KillScene(const Shape& shape) : Scene(shape) {
    REQUIRE(successor.locks().try_take(kRankByte));
    for (std::uint32_t rank = 1; rank < shape.ranks; ++rank) REQUIRE(living.locks().try_take(kRankByte + rank));
  }
};

}  // namespace ps_shm::test
