// Pushes, pulls, sync steps, accumulators and recovery on weak memory.
#include <bit>

#include "ps_shm/errors.hpp"
#include "shm/slots/recovery.hpp"
#include "support/conservation.hpp"
#include "support/test_job.hpp"
#include "weak/scenes.hpp"

namespace ps_shm::test {
namespace {

using namespace ps_shm::shm;

struct Shape {
  std::uint64_t floats = 2;
  std::uint32_t variables = 1, ranks = 2;
  bool is_recovered = false;        // the words of free buffers are modelled as well
  bool has_snapshot_point = false;  // snapshot point 1 is open, and all pushes are after it
  bool is_in_place = false;         // pushes change chunks where they lie; of each block the first float is modelled
  bool has_one_log = false;         // each push begins with the first free buffer again, as after a recovery
};

// Every push adds a power of two of its own, so a value tells which pushes are in it. Each fiber writes to its own
// part.
struct Log {
  std::uint64_t version[12];  // 1 + the version that the push of that number was applied to; 0: it has not returned
  std::uint64_t variable[12];
  std::uint32_t helped[2];  // four bits per step: how often the rank applied the step
  std::uint32_t contributed[2];
};

constexpr std::uint64_t kInPlaceFloats = UndoLog::kBlock + 1;  // two blocks

class SlotScene : public WeakScene {
 public:
  explicit SlotScene(const Shape& shape) : shape_(shape) {
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
    for (const auto& [number, names] : count_names(job_.segments, records())) {
      BufferHeaderShm& buffer = job_.buffer(*records_[0], number);
      explorer.model(&buffer.stamp);
      explorer.model(&buffer.included_steps);
      explorer.model(&buffer.contributors.bits[0]);
      explorer.name(&buffer.stamp, fmt::format("stamp {}", number));
      explorer.name(&buffer.included_steps, fmt::format("included {}", number));
      explorer.name(&buffer.contributors.bits[0], fmt::format("fork {}", number));
      for (std::size_t i = 0; i < shape.floats; i += step()) {
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
    explorer.at_end([this] { check(); });
  }

  // Adds a fiber that pushes to these variables, in this order.
  SlotScene& writer(std::uint32_t rank, std::vector<std::uint32_t> targets, const WeakFiber& options = {}) {
    const std::uint32_t first = next_push_;
    next_push_ += static_cast<std::uint32_t>(targets.size());
    may_die_ = may_die_ || options.may_die;
    if (!options.may_die) certain_ |= ((1U << targets.size()) - 1) << first;
    for (std::size_t i = 0; i < targets.size(); ++i) pushes_of_[targets[i]] |= 1U << (first + i);
    explorer.add([this, rank, first, targets = std::move(targets)] { push_all(rank, first, targets); }, options);
    return *this;
  }

  // Adds a fiber that recovers the state that the rank's last owner has left, and then pushes once to each of these.
  SlotScene& successor(std::uint32_t rank, const JobSegments& process, std::vector<std::uint32_t> targets,
                       std::uint32_t after) {
    const std::uint32_t first = next_push_;
    next_push_ += static_cast<std::uint32_t>(targets.size());
    certain_ |= ((1U << targets.size()) - 1) << first;
    for (std::size_t i = 0; i < targets.size(); ++i) pushes_of_[targets[i]] |= 1U << (first + i);
    const std::uint64_t named = shape_.variables + job_.segments.lanes() * kFreeBuffersPerClass;
    explorer.add(
        [this, rank, first, locks = process.locks(), targets = std::move(targets)] {
          recover_buffers(job_.segments, rank, locks);
          explorer.forget();
          push_all(rank, first, targets);
        },
        {.after = after, .patience = 2 * (1 + 2 * named)});
    return *this;
  }

  SlotScene& reader(std::uint32_t variable, std::uint32_t pulls) {
    explorer.add([this, variable, pulls] {
      std::uint64_t last = 0;
      std::uint32_t seen = 0;
      for (std::uint32_t i = 0; i < pulls; ++i) {
        float out[8] = {};
        std::uint64_t retries = 0;
        const std::uint64_t version = variables_[variable].pull_chunk(0, out, retries);
        const auto values = static_cast<std::uint32_t>(out[0]);
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

  // The same beside updates in place, each of which adds 1. The blocks may be of two versions, the first one newer, and such
  // a copy counts as the version before. Beside a writer that may die, the second block may lack its push for ever.
  SlotScene& reader_in_place(std::uint32_t pulls) {
    explorer.add([this, pulls] {
      std::uint64_t seen[2] = {};
      for (std::uint32_t i = 0; i < pulls; ++i) {
        float out[kInPlaceFloats] = {};
        std::uint64_t retries = 0;
        const std::uint64_t version = variables_[0].pull_chunk(0, out, retries);
        const std::uint64_t found[2] = {std::uint64_t(out[0]), std::uint64_t(out[UndoLog::kBlock])};
        const std::uint64_t between = (version + 1) & kVersionMask;
        const bool is_whole = found[0] == found[1] && version == found[0];
        if (!is_whole && !may_die_ && (found[0] - found[1] > 1 || found[1] - between > 1 || found[0] - between > 1))
          explorer.fail("a block of neither version");
        if (found[0] < seen[0] || found[1] < seen[1]) explorer.fail("a later pull is older");
        std::copy_n(found, 2, seen);
        explorer.forget(version << 32 | found[0] << 16 | found[1] << 8 | i);
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
        const auto add = [&](float* out, const float* in, std::uint64_t) { return add_to(out, in, float(1U << step)); };
        if (variables_[0].apply_step(0, step, free_buffers, {}, add) == StepResult::kApplied)
          log_.helped[rank] += 1U << 4 * step;
        if (!variables_[0].includes(0, step)) explorer.fail("a step that was applied is not included");
      }
    });
    return *this;
  }

  // Adds a fiber that contributes to the sums of steps.
  SlotScene& contributor(std::uint32_t rank, std::uint32_t steps, bool again, std::uint32_t variable = 0) {
    is_summed_ = true;
    explorer.add([this, rank, steps, again, variable] {
      FreeBuffers free_buffers(job_.segments, rank);
      for (std::uint32_t step = 0; step < steps; ++step)
        for (int time = 0; time < (again ? 2 : 1); ++time) {
          const auto sum = [&](float* out, const float* in) { add_to(out, in, float(1U << (rank + 2 * step))); };
          const ContributeResult result = variables_[variable].contribute(0, free_buffers, {rank, step}, false, sum);
          if (result == (time == 0 ? ContributeResult::kAlreadyIn : ContributeResult::kAdded))
            explorer.fail("in twice, or not in");
          if (result != ContributeResult::kTooLate) log_.contributed[rank] |= 1U << step;
        }
    });
    return *this;
  }
  SlotScene& summer(std::uint64_t steps) {
    explorer.add([this, steps] {
      for (std::uint64_t step = 0; step < steps; ++step) check_sum(step);
    });
    return *this;
  }

  JobSegments attach(std::uint32_t byte) {
    JobSegments process = job_.attach();
    if (!process.locks().try_take(byte)) throw std::runtime_error("the byte is taken");
    return process;
  }

  std::vector<JobSegments> processes;

  static JobConfig config(const Shape& shape) {
    JobConfig config;
    config.workers = config.max_workers = shape.ranks;
    if (shape.is_in_place) config.chunk_bytes = 2048;  // the log's room
    return config;
  }

 private:
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
        push_in_place(rank, targets[i], shape_.has_one_log ? first_again : free_buffers);
        explorer.forget(i << 8 | ++turn % kFreeBuffersPerClass);
        continue;
      }
      const auto add = [&](float* out, const float* in, std::uint64_t) {
        return add_to(out, in, float(1U << (first + i)));
      };
      const SwapResult result =
          variables_[targets[i]].push_chunk(0, free_buffers, {rank, 0, shape_.has_snapshot_point ? 1U : 0U}, add);
      log_.version[first + i] = result.version + 1;
      turn += 1 + result.retries;
      explorer.forget(i << 8 | turn % kFreeBuffersPerClass);
    }
  }

  void push_in_place(std::uint32_t rank, std::uint32_t variable, FreeBuffers& free_buffers) {
    const auto add = [&](float* values, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                         const UndoLog* log) {
      if (log != nullptr) explorer.fail("an update that the model does not see");
      values[0] += 1;
    };
    try {
      if (!variables_[variable].try_push_in_place(0, free_buffers, {.rank = rank}, add))
        explorer.fail("no push in place");
    } catch (const Error& error) {
      explorer.fail(error.what());
    }
  }

  // Every block has all pushes that did not die, and at most one that did.
  void check_in_place() {
    for (std::uint32_t i = 0; i < shape_.variables; ++i) {
      const std::uint64_t word = job_.word(*records_[i], 0).load_acquire();
      const BufferHeaderShm& buffer = job_.buffer(*records_[0], buffer_of(word));
      const auto* values = reinterpret_cast<const float*>(&buffer + 1);
      const int certain = std::popcount(certain_ & pushes_of_[i]);
      for (std::size_t k = 0; k < shape_.floats; k += step())
        if (values[k] < float(certain) || values[k] > float(version_of(word)))
          explorer.fail("a push is lost or doubled");
      if (!may_die_ && version_of(word) != std::uint64_t(certain)) explorer.fail("a version is missing");
      if (buffer.stamp.load_relaxed() != make_stamp(records_[i]->first_chunk, version_of(word)))
        explorer.fail("the current buffer has another stamp");
    }
  }

  // Between the floats that are modelled.
  std::size_t step() const noexcept { return shape_.is_in_place ? UndoLog::kBlock : 1; }

  void check_sum(std::uint64_t step) {
    float found[8] = {};
    RankSet ranks;
    const bool is_whole = variables_[0].try_use_sum(0, step, [&](const float* values, const RankSet& in) {
      ranks = in;
      std::copy_n(values, shape_.floats, found);
    });
    std::uint32_t expected = 0;
    for (std::uint32_t rank = 0; rank < 2; ++rank)
      if (ranks.contains(rank)) expected += 1U << (rank + 2 * step);
    for (std::size_t i = 0; i < shape_.floats && is_whole; ++i)
      if (found[i] != float(expected)) explorer.fail("sum and set disagree");
  }

  void check() {
    if (!is_conserved(job_.segments, records())) explorer.fail("a buffer is lost or named twice");
    if (is_summed_) return check_sum(0), check_sum(1);
    if (shape_.is_in_place) return check_in_place();
    for (std::uint32_t i = 0; i < shape_.variables; ++i) {
      const std::uint64_t word = job_.word(*records_[i], 0).load_acquire();
      const BufferHeaderShm& buffer = job_.buffer(*records_[0], buffer_of(word));
      const auto* values = reinterpret_cast<const float*>(&buffer + 1);
      for (std::size_t k = 1; k < shape_.floats; ++k)
        if (values[k] != values[0]) explorer.fail("the current buffer is torn");
      const auto there = static_cast<std::uint32_t>(values[0]);
      if (std::uint64_t(std::popcount(there)) != version_of(word))
        explorer.fail("version and value disagree at the end");
      if ((there & ~pushes_of_[i]) != 0) explorer.fail("a push to another variable");
      if ((certain_ & pushes_of_[i] & ~there) != 0) explorer.fail("a push is lost");
      if (buffer.stamp.load_relaxed() != make_stamp(records_[i]->first_chunk, version_of(word)))
        explorer.fail("the current buffer has another stamp");
      std::uint64_t versions = 0;
      for (std::uint32_t push = 0; push < 12; ++push) {
        if ((pushes_of_[i] >> push & 1) == 0 || log_.version[push] == 0) continue;
        if ((versions >> log_.version[push] & 1) != 0) explorer.fail("two pushes to one version");
        versions |= std::uint64_t{1} << log_.version[push];
      }
    }
    std::uint32_t applied = log_.helped[0] + log_.helped[1], once = 0;
    for (std::uint32_t step = 0; is_helped_ && certain_ >> step != 0; ++step) once |= 1U << 4 * step;
    if (applied != once) explorer.fail("a step was not applied by just one helper");
  }

  std::vector<const VariableShm*> records() const { return {records_.begin(), records_.end()}; }

  Shape shape_;
  TestJob job_{config(shape_)};
  std::vector<VariableShm*> records_;
  std::vector<VersionedVariable> variables_;
  Log log_ = {};
  std::uint32_t next_push_ = 0, certain_ = 0, pushes_of_[2] = {};
  bool is_helped_ = false, is_summed_ = false, may_die_ = false;
};

using Made = std::unique_ptr<SlotScene>;
Made make(const Shape& shape) { return std::make_unique<SlotScene>(shape); }
std::vector<std::uint32_t> times(std::size_t count, std::uint32_t variable = 0) {
  return {std::vector(count, variable)};
}

// v's buffer of version 1 becomes w's buffer of version 1.
const std::vector<std::uint32_t> kExchange = {0, 0, 0, 0, 0, 1, 0};

// Rank 0 dies at any access, rank 1 pushes, and the next owner of rank 0 recovers.
Made recovery_scene(std::uint32_t pushes_of_other, bool has_snapshot_point) {
  Made scene = make({.floats = 1, .is_recovered = true, .has_snapshot_point = has_snapshot_point});
  scene->processes.push_back(scene->attach(kRankByte));
  scene->processes.push_back(scene->attach(kRankByte + 1));
  scene->writer(0, times(1), {.may_die = true}).writer(1, times(pushes_of_other));
  scene->successor(0, scene->processes[0], times(1), 1);
  return scene;
}

Made death_in_place(bool has_reader) {
  Made scene = make({.floats = kInPlaceFloats, .ranks = 1, .is_recovered = true, .is_in_place = true});
  scene->processes.push_back(scene->attach(kRankByte));
  scene->writer(0, times(1), {.may_die = true});
  scene->successor(0, scene->processes[0], times(1), 1);
  if (has_reader) scene->reader_in_place(2);
  return scene;
}

}  // namespace

std::vector<WeakCase> scenes_of_slots() {
  return {
      {"slot: two writers",
       [] {
         Made scene = make({.floats = 1});
         scene->writer(0, times(2)).writer(1, times(1));
         return scene;
       }},
      {"slot: a writer goes round its free buffers while a reader sleeps",
       [] {
         Made scene = make({.floats = 2, .ranks = 1});
         scene->writer(0, times(kFreeBuffersPerClass + 2)).reader(0, 1);
         return scene;
       }},
      {"slot: a writer, and a reader that pulls twice",
       [] {
         Made scene = make({.floats = 1, .ranks = 1});
         scene->writer(0, times(kFreeBuffersPerClass + 2)).reader(0, 2);
         return scene;
       }},
      {"slot: two writers and a reader",
       [] {
         Made scene = make({.floats = 1});
         scene->writer(0, times(2)).writer(1, times(2)).reader(0, 1);
         return scene;
       },
       false},
      {"slot: two chunks exchange their buffers",
       [] {
         Made scene = make({.floats = 1, .variables = 2, .ranks = 1});
         scene->writer(0, kExchange).reader(0, 1);
         return scene;
       }},
      {"slot: two writers exchange buffers of two chunks",
       [] {
         Made scene = make({.floats = 1, .variables = 2});
         scene->writer(0, kExchange).writer(1, times(2, 1)).reader(0, 1);
         return scene;
       },
       false},
      {"slot: a writer changes a chunk in place beside a reader",
       [] {
         Made scene = make({.floats = kInPlaceFloats, .ranks = 1, .is_in_place = true});
         scene->writer(0, times(1)).reader_in_place(1);
         return scene;
       }},
      {"slot: a writer changes a chunk in place twice beside a reader",
       [] {
         Made scene = make({.floats = kInPlaceFloats, .ranks = 1, .is_in_place = true});
         scene->writer(0, times(2)).reader_in_place(2);
         return scene;
       },
       false},
      {"slot: a writer goes round its logs in place while a reader sleeps",
       [] {
         Made scene = make({.floats = kInPlaceFloats, .ranks = 1, .is_in_place = true});
         scene->writer(0, times(kFreeBuffersPerClass + 1)).reader_in_place(1);
         return scene;
       },
       false},
      {"slot: a writer in place comes back to a chunk with the same log while a reader sleeps",
       [] {
         Made scene = make({.floats = kInPlaceFloats, .ranks = 1, .is_in_place = true, .has_one_log = true});
         scene->writer(0, times(2)).reader_in_place(1);
         return scene;
       },
       false},
      {"slot: a writer dies anywhere in place, and its successor recovers", [] { return death_in_place(false); }},
      {"slot: a writer dies anywhere in place beside a reader, and its successor recovers",
       [] { return death_in_place(true); }, false},
      {"slot: two helpers apply the same steps",
       [] {
         Made scene = make({.floats = 1});
         scene->helper(0, 2).helper(1, 2);
         return scene;
       }},
      {"slot: sums and their sets",
       [] {
         Made scene = make({.floats = 1});
         scene->contributor(0, 1, true).contributor(1, 1, false).summer(1);
         return scene;
       }},
      {"slot: a contributor goes round its free buffers",
       [] {
         Made scene = make({.floats = 1, .ranks = 1});
         scene->contributor(0, kFreeBuffersPerClass + 2, false).summer(2);
         return scene;
       }},
      {"snapshot: a writer goes round its free buffers while somebody looks at the image",
       [] {
         Made scene = make({.floats = 1, .ranks = 1, .has_snapshot_point = true});
         scene->writer(0, times(kFreeBuffersPerClass + 2)).image_reader(0, 1);
         return scene;
       }},
      {"snapshot: two writers fork a chunk",
       [] {
         Made scene = make({.floats = 1, .has_snapshot_point = true});
         scene->writer(0, times(1)).writer(1, times(1)).image_reader(0, 1);
         return scene;
       }},
      {"free buffers: a writer dies anywhere, and its successor recovers", [] { return recovery_scene(1, false); }},
      {"free buffers: a writer dies anywhere after a snapshot point, and its successor recovers",
       [] { return recovery_scene(1, true); }, false},
  };
}

}  // namespace ps_shm::test
