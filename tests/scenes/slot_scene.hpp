// One or two variables of one chunk, and fibers that push, pull, help, contribute and recover through the real functions,
// with the invariants that are checked at the end of every execution.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "ps_shm/errors.hpp"
#include "scenes/scenes.hpp"
#include "scenes/slot_shape.hpp"
#include "shm/base/racing.hpp"
#include "shm/slots/recovery.hpp"
#include "support/conservation.hpp"
#include "support/test_job.hpp"

namespace ps_shm::test {

using namespace ps_shm::shm;

class SlotScene : public Scene {
 public:
  explicit SlotScene(const Shape& shape) : shape_(shape) {
    for (std::size_t i = 0; i < shape.floats; ++i)
      if (!shape.is_in_place || i % UndoLog::kBlock < shape.of_block) modelled_.push_back(i);
    for (std::uint32_t i = 0; i < shape.variables; ++i) {
      records_.push_back(&job_.declare(i == 0 ? "v" : "w", shape.floats, 0,
                                       shape.is_in_place ? Layout::kSingleWriter : Layout::kVersioned));
      variables_.push_back(job_.versioned(*records_.back()));
    }
    Directory directory(job_.segments);
    for (std::uint32_t i = 0; shape.has_snapshot_point && i < shape.variables; ++i)
      directory.reserve({i}, kSnapshotByte);
    for (std::uint32_t i = 0; i < shape.variables; ++i) {
      explorer.model(&job_.word(*records_[i], 0));
      explorer.name(&job_.word(*records_[i], 0), fmt::format("word {}", i));
    }
    for (std::uint32_t i = 0; shape.is_in_place && i < shape.variables; ++i) {
      BufferHeaderShm& buffer = job_.buffer(*records_[i], buffer_of(job_.word(*records_[i], 0).load_relaxed()));
      for (const std::size_t k : modelled_) reinterpret_cast<float*>(&buffer + 1)[k] = float(first_value(i, k));
    }
    for (const auto& [number, names] : count_names(job_.segments, records())) {
      BufferHeaderShm& buffer = job_.buffer(*records_[0], number);
      explorer.model(&buffer.stamp);
      explorer.model(&buffer.included_steps);
      explorer.model(&buffer.contributors.bits[0]);
      if (shape.has_adds) explorer.model(&skipped_of(buffer));
      explorer.name(&buffer.stamp, fmt::format("stamp {}", number));
      explorer.name(&buffer.included_steps, fmt::format("included {}", number));
      explorer.name(&buffer.contributors.bits[0], fmt::format("fork {}", number));
      for (const std::size_t i : modelled_) {
        explorer.model(reinterpret_cast<float*>(&buffer + 1) + i, 1);
        explorer.name(reinterpret_cast<float*>(&buffer + 1) + i, fmt::format("data {}.{}", number, i));
      }
    }
    for (std::uint32_t rank = 0; rank < shape.ranks; ++rank)
      for (std::uint32_t which = 0; which < kFreeBuffersPerClass; ++which) {
        FreeBufferShm& free_buffer = job_.free_buffer(*records_[0], rank, which);
        if (shape.is_recovered)
          explorer.model(&free_buffer);
        else
          explorer.remember(&free_buffer);
        explorer.name(&free_buffer.record, fmt::format("record {}.{}", rank, which));
      }
    explorer.remember(&log_);
    explorer.switch_at_races();
    for (const std::size_t which : {0U, 1U, 2U}) {
      explorer.keep_apart(racing_scratch(which), 8);
      for (const std::size_t i : modelled_)
        if (i >= 8) explorer.keep_apart(racing_scratch(which) + i, 1);
    }
    explorer.at_end([this] { check(); });
  }

  // Adds a fiber that pushes to these variables, in this order.
  SlotScene& writer(std::uint32_t rank, std::vector<std::uint32_t> targets, const FiberOptions& options = {}) {
    const std::uint32_t first = next_push_;
    next_push_ += static_cast<std::uint32_t>(targets.size());
    if (!options.may_die) certain_ |= ((1U << targets.size()) - 1) << first;
    for (std::size_t i = 0; i < targets.size(); ++i)
      if (targets[i] != kAnyVariable) pushes_of_[targets[i]] |= 1U << (first + i);
    explorer.add([this, rank, first, targets = std::move(targets)] { push_all(rank, first, targets); }, options);
    return *this;
  }

  // Adds a fiber that recovers the state that the rank's last owner has left, and then pushes once to each of these.
  SlotScene& successor(std::uint32_t rank, const JobSegments& process, std::vector<std::uint32_t> targets,
                       std::uint32_t after, bool may_die = false) {
    const std::uint32_t first = next_push_;
    next_push_ += static_cast<std::uint32_t>(targets.size());
    if (!may_die) certain_ |= ((1U << targets.size()) - 1) << first;
    for (std::size_t i = 0; i < targets.size(); ++i)
      if (targets[i] != kAnyVariable) pushes_of_[targets[i]] |= 1U << (first + i);
    explorer.add(
        [this, rank, first, locks = process.locks(), targets = std::move(targets)] {
          recover_buffers(job_.segments, rank, locks);
          explorer.forget();
          push_all(rank, first, targets);
        },
        {.after = after, .may_die = may_die});
    return *this;
  }

  SlotScene& reader(std::uint32_t variable, std::uint32_t pulls) {
    const std::uint32_t reader = readers_++;
    explorer.add([this, reader, variable, pulls] {
      std::uint64_t last = 0;
      std::uint32_t seen = 0;
      for (std::uint32_t i = 0; i < pulls; ++i) {
        float out[8] = {};
        Log::Pull& pull = log_.pulls[reader][i];
        if (explorer.is_sequential() && i != 0) explorer.pause();
        pull.acknowledged = log_.acknowledged[variable];
        const std::uint64_t version = pull_once(variable, out);
        const auto values = static_cast<std::uint32_t>(out[0]);
        if (explorer.is_sequential())
          pull.version = version, pull.values = values, pull.variable = variable, pull.is_there = 1;
        for (std::size_t k = 0; k < shape_.floats; ++k)
          if (out[k] != float(values)) explorer.fail("torn");
        if (std::uint64_t(std::popcount(values)) != version) explorer.fail("version and value disagree");
        if ((values & ~pushes_of_[variable]) != 0) explorer.fail("another variable's values");
        if (version < last || (values & seen) != seen) explorer.fail("a later pull is older");
        last = version, seen = values;
        explorer.forget(version << 32 | values << 4 | i);
      }
    });
    return *this;
  }

  // The same beside updates in place.
  SlotScene& reader_in_place(std::uint32_t pulls) {
    explorer.add([this, pulls] {
      for (std::uint32_t i = 0; i < pulls; ++i) {
        if (explorer.is_sequential() && i != 0) explorer.pause();
        const std::size_t variable = shape_.variables > 1 ? explorer.pick(shape_.variables) : 0;
        const std::uint32_t least = explorer.is_sequential() ? log_.done[variable] : 0;
        float out[floats_of_blocks(kMostBlocks, 2)] = {};
        const std::uint64_t next = (pull_once(variable, out) + 1) & kVersionMask;
        Log::PullInPlace& pull = log_.pulls_in_place[i];
        pull = {1, std::uint8_t(variable), std::uint8_t(next), {}};
        for (const std::size_t k : modelled_) {
          const std::uint32_t updates = updates_in(out, variable, k);
          if ((updates & least) != least) explorer.fail("a push that was over before the pull is missing");
          pull.blocks[k / UndoLog::kBlock] = std::uint8_t(updates);
        }
        explorer.forget(i);
      }
    });
    return *this;
  }

  SlotScene& image_reader(std::uint32_t variable, std::uint32_t looks) {
    explorer.add([this, variable, looks] {
      for (std::uint32_t i = 0; i < looks; ++i) {
        float out[8];
        std::fill_n(out, 8, 1.0F);
        variables_[variable].pull_image(0, 1, out);
        if (shape_.has_adds && variables_[variable].image_steps(0, 1) != 0) explorer.fail("steps of later pushes");
        for (std::size_t k = 0; k < shape_.floats; ++k)
          if (out[k] != 0) explorer.fail("a later push is in the image");
        explorer.forget(i);
      }
    });
    return *this;
  }

  // Adds a fiber that applies sync steps, as pushes with their numbers.
  SlotScene& helper(std::uint32_t rank, std::uint32_t steps) {
    certain_ |= (1U << steps) - 1;
    pushes_of_[0] |= (1U << steps) - 1;
    is_helped_ = true;
    explorer.add([this, rank, steps] {
      FreeBuffers free_buffers(job_.segments, rank);
      for (std::uint32_t step = 0; step < steps; ++step) {
        const auto add = [&](float* out, const float* in, ChunkPast) { return add_to(out, in, float(1U << step)); };
        if (variables_[0].apply_step(0, step, free_buffers, {}, add) == StepResult::kApplied)
          log_.helped[rank] += 1U << 4 * step;
        note(0, step, step);
        if (!variables_[0].includes(0, step)) explorer.fail("a step that was applied is not included");
      }
    });
    return *this;
  }

  // Adds a fiber that contributes to the sums of steps; with `again` twice, as a successor would that does not know of
  // the first contribution.
  SlotScene& contributor(std::uint32_t rank, std::uint32_t steps, bool again, const FiberOptions& options = {}) {
    is_summed_ = true, wanted_ranks_ |= 1U << rank, last_step_ = steps - 1;
    explorer.add(
        [this, rank, steps, again] {
          FreeBuffers free_buffers(job_.segments, rank);
          for (std::uint32_t step = 0; step < steps; ++step)
            for (int time = 0; time < (again ? 2 : 1); ++time) {
              const ContributeResult result = contribute(0, free_buffers, rank, step, false);
              if (result == (time == 0 ? ContributeResult::kAlreadyIn : ContributeResult::kAdded))
                explorer.fail("in twice, or not in");
              if (result != ContributeResult::kTooLate) log_.contributed[rank] |= 1U << step;
            }
        },
        options);
    return *this;
  }
  // Adds a fiber that recovers what the rank's last owner has left, and contributes to step 0 if that has not.
  SlotScene& successor_of_contributor(std::uint32_t rank, const JobSegments& process, std::uint32_t after) {
    explorer.add(
        [this, rank, locks = process.locks()] {
          recover_buffers(job_.segments, rank, locks);
          explorer.forget();
          FreeBuffers free_buffers(job_.segments, rank);
          contribute(0, free_buffers, rank, 0, false);
        },
        {.after = after});
    return *this;
  }
  // Rank 0 contributes to the second variable and then to the first one, and rank 1's buffer moves between them.
  SlotScene& contributors_of_two() {
    is_summed_ = true, wanted_ranks_ = 3;
    explorer.add([this] {
      FreeBuffers free_buffers(job_.segments, 0);
      contribute(1, free_buffers, 0, 0, false);
      if (contribute(0, free_buffers, 0, 0, false) != ContributeResult::kAdded) explorer.fail("in before it was added");
    });
    explorer.add([this] {
      FreeBuffers free_buffers(job_.segments, 1);
      for (std::uint32_t i = 0; i <= kFreeBuffersPerClass; ++i)
        contribute(i != 0, free_buffers, 1, 0, i > 1);  // ends in the first variable's buffer
    });
    return *this;
  }
  SlotScene& summer(std::uint64_t steps) {
    explorer.add([this, steps] {
      for (std::uint64_t step = 0; step < steps; ++step) check_sum(step);
    });
    return *this;
  }

  // At the end, ranks 0 and 1 have died, and their successors recover one after the other, this one first.
  SlotScene& recovered_at_end(std::uint32_t first) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      processes.push_back(job_.attach());
      for (std::uint32_t which = 0; which < kFreeBuffersPerClass; ++which)
        explorer.share(&job_.free_buffer(*records_[0], rank, which).record);
    }
    first_recovered_ = first;
    return *this;
  }

  // Another process, which holds that byte.
  void attach(std::uint32_t byte) {
    processes.push_back(job_.attach());
    if (!processes.back().locks().try_take(byte)) throw std::runtime_error("the byte is taken");
  }

  bool has_happened() const override { return !first_recovered_ || recovered_jointly_ != 0; }

  std::vector<JobSegments> processes;

  static JobConfig config(const Shape& shape) {
    JobConfig config;
    config.workers = config.max_workers = shape.ranks;
    if (shape.is_in_place) config.chunk_bytes = 2048;  // the log's room
    return config;
  }

 protected:
  std::uint64_t pull_once(std::uint32_t variable, float* out) const {
    std::uint64_t retries = 0;
    return variables_[variable].pull_chunk(0, out, retries);
  }

  SwapResult push_once(std::uint32_t rank, FreeBuffers& free_buffers, std::uint32_t variable, std::uint32_t number) {
    ChunkPast last;
    std::uint32_t before = 0;
    const auto add = [&](float* out, const float* in, ChunkPast past) {
      last = past, before = static_cast<std::uint32_t>(in[0]);
      return add_to(out, in, float(1U << number));
    };
    const bool is_step = !shape_.has_adds || number % 2 == 0;
    const SwapResult result =
        variables_[variable].push_chunk(0, free_buffers, {rank, 0, shape_.has_snapshot_point ? 1U : 0U, is_step}, add);
    if (last.steps != steps_in(before)) explorer.fail("a push was told another number of steps (slot.V15)");
    note(variable, number, result.version);
    return result;
  }

  // The steps among the pushes that are in this value.
  std::uint64_t steps_in(std::uint32_t values) const noexcept {
    return std::uint64_t(std::popcount(shape_.has_adds ? values & 0x55555555U : values));
  }

  // The push has returned.
  void note(std::uint32_t variable, std::uint32_t number, std::uint64_t version) {
    log_.applied_to[variable][number] = version + 1;
    if (explorer.is_sequential()) log_.acknowledged[variable] |= 1U << number;
  }

  bool add_to(float* out, const float* in, float delta) const {
    for (std::size_t i = 0; i < shape_.floats; ++i) out[i] = (in == nullptr ? 0 : in[i]) + delta;
    return true;
  }

  void push_all(std::uint32_t rank, std::uint32_t first, const std::vector<std::uint32_t>& targets) {
    FreeBuffers free_buffers(job_.segments, rank);
    std::uint64_t turn = 0;
    for (std::uint32_t i = 0; i < targets.size(); ++i) {
      if (shape_.is_in_place) {
        FreeBuffers first_again(job_.segments, rank);
        const std::uint32_t variable =
            targets[i] == kAnyVariable ? std::uint32_t(explorer.pick(shape_.variables)) : targets[i];
        ++log_.begun[variable];
        push_in_place(rank, variable, shape_.has_one_log ? first_again : free_buffers);
        explorer.forget(i << 8 | ++turn % kFreeBuffersPerClass);
        continue;
      }
      turn += 1 + push_once(rank, free_buffers, targets[i], first + i).retries;
      explorer.forget(i << 8 | turn % kFreeBuffersPerClass);
    }
  }

  // The update of version v adds 1 << v to each float.
  void push_in_place(std::uint32_t rank, std::uint32_t variable, FreeBuffers& free_buffers) {
    const auto add = [&](float* values, std::uint64_t, std::uint64_t, std::uint64_t, ChunkPast past,
                         const UndoLog* log) {
      if (log != nullptr) explorer.fail("an update that the model does not see");
      for (std::uint32_t i = 0; i < shape_.of_block; ++i) values[i] += float(1U << past.version);
    };
    const auto add_all = [&](float* out, const float* in, ChunkPast past) {
      for (const std::size_t i : modelled_) out[i] = in[i] + float(1U << past.version);
    };
    try {
      std::optional<SwapResult> result;
      if (shape_.has_swaps && explorer.pick(2) != 0)
        result = variables_[variable].push_chunk(0, free_buffers, {.rank = rank}, add_all);
      else
        result = variables_[variable].try_push_in_place(0, free_buffers, {.rank = rank}, add);
      if (!result) return explorer.fail("no push in place");
      log_.done[variable] |= 1U << result->version;
    } catch (const Error& error) {
      explorer.fail(error.what());
    }
  }

  // Of a float in place: which one it is. Updates add less.
  std::uint32_t first_value(std::uint64_t variable, std::size_t k) const noexcept {
    return std::uint32_t(1 + (variable * kMostBlocks + k / UndoLog::kBlock) * 2 + k % UndoLog::kBlock) << 8;
  }
  // The updates that are in it, as bits. All floats of a block have the same.
  std::uint32_t updates_in(const float* values, std::uint64_t variable, std::size_t k) {
    const float updates = values[k] - float(first_value(variable, k));
    if (!(updates >= 0 && updates < 256)) return explorer.fail("another float's value"), 0;
    if (k % UndoLog::kBlock != 0 && updates != values[k - 1] - float(first_value(variable, k - 1)))
      explorer.fail("a block is torn");
    return static_cast<std::uint32_t>(updates);
  }

  ContributeResult contribute(std::uint32_t variable, FreeBuffers& free_buffers, std::uint32_t rank, std::uint64_t step,
                              bool again) {
    const auto sum = [&](float* out, const float* in) { add_to(out, in, float(1U << (rank + 3 * step))); };
    return variables_[variable].contribute(0, free_buffers, {rank, step}, again, sum);
  }

  // Every block has all pushes that have returned. Those of the dead that are in the chunk are in its first blocks, and
  // its version counts them as well.
  void check_in_place() {
    for (std::uint32_t i = 0; i < shape_.variables; ++i) {
      const std::uint64_t word = job_.word(*records_[i], 0).load_acquire(), version = version_of(word);
      const BufferHeaderShm& buffer = job_.buffer(*records_[0], buffer_of(word));
      const auto* values = reinterpret_cast<const float*>(&buffer + 1);
      std::uint32_t blocks[kMostBlocks] = {};
      for (const std::size_t k : modelled_) {
        const std::uint32_t updates = updates_in(values, i, k);
        blocks[k / UndoLog::kBlock] = updates;
        if ((log_.done[i] & ~updates) != 0 || updates >> version != 0) explorer.fail("a push is lost or doubled");
        if (k >= UndoLog::kBlock && (updates & ~blocks[k / UndoLog::kBlock - 1]) != 0)
          explorer.fail("a push is in a block and not in the one before it");
      }
      if (version < std::uint64_t(std::popcount(log_.done[i])) || version > log_.begun[i])
        explorer.fail("a version is missing");
      if (buffer.stamp.load_relaxed() != make_stamp(records_[i]->first_chunk, version))
        explorer.fail("the current buffer has another stamp");
      std::uint32_t seen[kMostBlocks] = {};
      for (const Log::PullInPlace& pull : log_.pulls_in_place)
        if (pull.is_there != 0 && pull.variable == i) check_pull_in_place(pull, blocks, seen);
    }
  }

  // A pull got the blocks of a moment: those of its version, or of the next one and then some of those that the update
  // behind that one changes, the first ones. `blocks`: the updates that are in each at the end.
  void check_pull_in_place(const Log::PullInPlace& pull, const std::uint32_t* blocks, std::uint32_t* seen) {
    const std::uint32_t before = (1U << pull.next) - 1;
    bool is_whole = true, is_between = true;
    for (std::size_t block = 0; block < this->blocks(); ++block) {
      const std::uint32_t found = pull.blocks[block];
      is_whole = is_whole && found == (blocks[block] & before >> 1);
      is_between = is_between && (found & before) == (blocks[block] & before) && (found & ~blocks[block]) == 0 &&
                   found >> (pull.next + 1) == 0 && (block == 0 || (found & ~pull.blocks[block - 1]) == 0);
      if ((seen[block] & ~found) != 0) explorer.fail("a later pull is older");
      seen[block] = found;
    }
    if (!is_whole && !is_between) explorer.fail("a pull got blocks that the chunk never had at one moment");
  }

  std::size_t blocks() const noexcept { return (shape_.floats + UndoLog::kBlock - 1) / UndoLog::kBlock; }
  static constexpr std::size_t kMostBlocks = 3;

  // At the end, the sum has all who have contributed.
  void check_sum(std::uint64_t step, bool is_end = false) {
    float found[8] = {};
    RankSet ranks;
    const bool is_whole = variables_[0].try_use_sum(0, step, [&](const float* values, const RankSet& in) {
      ranks = in;
      std::copy_n(values, shape_.floats, found);
    });
    if (is_end && (!is_whole || ranks.bits[0] != wanted_ranks_)) explorer.fail("one is lost");
    std::uint32_t expected = 0;
    for (std::uint32_t rank = 0; rank < 3; ++rank)
      if (ranks.contains(rank)) expected += 1U << (rank + 3 * step);
    for (std::size_t i = 0; i < shape_.floats && is_whole; ++i)
      if (found[i] != float(expected)) explorer.fail("sum and set disagree");
  }

  // Checks that a version consists exactly of the pushes `values`: of all in `least`, and of those that have returned
  // exactly those that were applied up to this version.
  void check_version(std::uint32_t variable, std::uint64_t version, std::uint32_t values, std::uint32_t least) {
    if (std::uint64_t(std::popcount(values)) != version) explorer.fail("version and value disagree at the end");
    if ((values & ~pushes_of_[variable]) != 0) explorer.fail("a push to another variable");
    if ((least & ~values) != 0) explorer.fail("a push is lost");
    std::uint64_t versions = 0;
    for (std::uint32_t push = 0; push < 12; ++push) {
      const std::uint64_t after = log_.applied_to[variable][push];
      if (after == 0) continue;
      if ((after <= version) != ((values >> push & 1) != 0)) explorer.fail("a push is not where it was told to be");
      if ((versions >> after & 1) != 0) explorer.fail("two pushes to one version");
      versions |= std::uint64_t{1} << after;
    }
  }

  void recover_both() {
    static std::uint64_t jointly;
    jointly = 0;
    g_fault_hooks.reached = [](FaultPoint point) { jointly += point == FaultPoint::kRecoveryTaken; };
    for (const std::uint32_t rank : {*first_recovered_, 1 - *first_recovered_}) {
      const TaskLocks& locks = processes[rank].locks();
      if (!locks.try_take(kRankByte + rank)) explorer.fail("the dead one's rank is not free");
      recover_buffers(job_.segments, rank, locks);
    }
    g_fault_hooks.reached = nullptr;
    for (const std::uint32_t rank : {0U, 1U}) processes[rank].locks().release(kRankByte + rank);
    recovered_jointly_ += jointly;
  }

  virtual void check() {
    if (first_recovered_) recover_both();
    if (!is_conserved(job_.segments, records())) explorer.fail("a buffer is lost or named twice");
    if (is_summed_) return check_sum(last_step_, true);
    if (shape_.is_in_place) return check_in_place();
    for (std::uint32_t i = 0; i < shape_.variables; ++i) {
      const std::uint64_t word = job_.word(*records_[i], 0).load_acquire();
      const BufferHeaderShm& buffer = job_.buffer(*records_[0], buffer_of(word));
      const auto* values = reinterpret_cast<const float*>(&buffer + 1);
      for (std::size_t k = 1; k < shape_.floats; ++k)
        if (values[k] != values[0]) explorer.fail("the current buffer is torn");
      check_version(i, version_of(word), static_cast<std::uint32_t>(values[0]), certain_ & pushes_of_[i]);
      if (buffer.stamp.load_relaxed() != make_stamp(records_[i]->first_chunk, version_of(word)))
        explorer.fail("the current buffer has another stamp");
      if (past_of(version_of(word), skipped_of(buffer).load_relaxed()).steps !=
          steps_in(static_cast<std::uint32_t>(values[0])))
        explorer.fail("the current buffer has another number of steps");
    }
    for (const auto& of_reader : log_.pulls)
      for (const Log::Pull& pull : of_reader)
        if (pull.is_there != 0) check_version(pull.variable, pull.version, pull.values, pull.acknowledged);
    std::uint32_t applied = log_.helped[0] + log_.helped[1], once = 0;
    for (std::uint32_t step = 0; is_helped_ && certain_ >> step != 0; ++step) once |= 1U << 4 * step;
    if (applied != once) explorer.fail("a step was not applied by just one helper");
  }

  std::vector<const VariableShm*> records() const { return {records_.begin(), records_.end()}; }

  Shape shape_;
  std::vector<std::size_t> modelled_;  // floats of a chunk
  TestJob job_{config(shape_)};
  std::vector<VariableShm*> records_;
  std::vector<VersionedVariable> variables_;
  Log log_ = {};
  std::uint32_t next_push_ = 0, certain_ = 0, pushes_of_[2] = {};
  std::uint32_t readers_ = 0, wanted_ranks_ = 0, last_step_ = 0;
  bool is_helped_ = false, is_summed_ = false;
  std::optional<std::uint32_t> first_recovered_;
  std::uint64_t recovered_jointly_ = 0;
};

}  // namespace ps_shm::test
