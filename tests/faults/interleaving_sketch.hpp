// A sketch of the protocol of versioned chunks, correct or with a flaw that the search for interleavings must find.
#pragma once

#include <cstdint>
#include <functional>

#include "faults/interleaving_scene.hpp"
#include "support/test_job.hpp"

namespace ps_shm::test {

enum class Flaw { kNone, kNoCompare, kNoStampCheck, kNoChunkInStamp, kNotBuilding, kStepOnce, kNotedTwice };

// A second implementation of the protocol of versioned_slot.hpp, with optional flaws.
class Sketch {
 public:
  Sketch(Scene& scene, Flaw flaw) : scene_(scene), flaw_(flaw) {}

  SwapResult push(std::uint32_t variable, FreeBuffers& free_buffers, float delta) const {
    SwapResult result;
    for (;; ++result.retries) {
      std::uint64_t old = word(variable).load_acquire();
      if (!try_swap(variable, old, free_buffers, delta, 0)) continue;
      result.version = version_of(old);
      return result;
    }
  }

  std::uint64_t pull(std::uint32_t variable, float* out) const {
    for (;;) {
      const std::uint64_t seen = word(variable).load_acquire();
      const BufferHeaderShm& buffer = at(buffer_of(seen));
      racing_copy(out, reinterpret_cast<const float*>(&buffer + 1), scene_.record(variable).elements);
      const std::uint64_t stamp = buffer.stamp.load_relaxed();
      if (flaw_ == Flaw::kNoStampCheck || stamp == make_stamp(scene_.record(variable).first_chunk, version_of(seen)) ||
          (flaw_ == Flaw::kNoChunkInStamp && (stamp & kVersionMask) == version_of(seen)))
        return version_of(seen);
    }
  }

  StepResult apply(std::uint64_t step, FreeBuffers& free_buffers, float delta) const {
    std::uint64_t old = word(0).load_acquire();
    if (at(buffer_of(old)).included_steps.load_relaxed() > step) return StepResult::kAlreadyIncluded;
    while (!try_swap(0, old, free_buffers, delta, step + 1)) old = word(0).load_acquire();
    return StepResult::kApplied;
  }

 private:
  AtomicShm<std::uint64_t>& word(std::uint32_t variable) const { return scene_.job.word(scene_.record(variable), 0); }
  BufferHeaderShm& at(std::uint64_t number) const { return scene_.job.buffer(scene_.record(0), number); }

  bool try_swap(std::uint32_t variable, std::uint64_t old, FreeBuffers& free_buffers, float delta,
                std::uint64_t included) const {
    const VariableShm& record = scene_.record(variable);
    const FreeBuffer free_buffer = free_buffers.begin(record, record.first_chunk, old, buffer_of(old));
    BufferHeaderShm& out = at(free_buffer.buffer);
    const std::uint64_t next = make_word(version_of(old) + 1, free_buffer.buffer);
    if (flaw_ != Flaw::kNotBuilding) out.stamp.store_relaxed(kBuilding);
    scene_.add(delta)(reinterpret_cast<float*>(&out + 1), reinterpret_cast<float*>(&at(buffer_of(old)) + 1), 0);
    out.included_steps.store_relaxed(included);
    out.stamp.store_relaxed(make_stamp(record.first_chunk, version_of(next)));
    const std::uint64_t replaced = buffer_of(old);
    if (flaw_ == Flaw::kNoCompare)
      word(variable).store_release(next);
    else if (!word(variable).try_exchange_acq_rel(old, next))
      return FreeBuffers::lost(free_buffer), false;
    // clears the in-flight mark first, and records the owned buffer in a second store
    if (flaw_ == Flaw::kNotedTwice) FreeBuffers::lost(free_buffer);
    FreeBuffers::won(free_buffer, replaced);
    return true;
  }

  Scene& scene_;
  Flaw flaw_;
};

inline void use_sketch(Scene& scene, Flaw flaw) {
  const Sketch sketch(scene, flaw);
  scene.push_once = [=](std::uint32_t variable, FreeBuffers& free_buffers, float delta) {
    return sketch.push(variable, free_buffers, delta);
  };
  scene.pull_once = [=](std::uint32_t variable, float* out) { return sketch.pull(variable, out); };
  scene.apply_once = [=](std::uint64_t step, FreeBuffers& free_buffers, float delta) {
    return sketch.apply(step, free_buffers, delta);
  };
}

struct FlawedScene : Scene {
  FlawedScene(const Shape& shape, Flaw flaw) : Scene(shape) { use_sketch(*this, flaw); }
};

// A successor that considers the swap of its predecessor done if and only if the word names the free buffer.
inline void settle_by_word(Scene& scene, std::uint32_t rank) {
  for (std::uint32_t which = 0; which < kFreeBuffersPerClass; ++which) {
    FreeBufferShm& shared = scene.job.free_buffer(scene.record(0), rank, which);
    const std::uint64_t record = shared.record.load_acquire();
    if (!is_in_flight(record)) continue;
    const std::uint64_t expected = shared.note_word.load_relaxed();
    const bool is_swapped = buffer_of(scene.job.word(scene.record(0), 0).load_acquire()) == buffer_of(record);
    FreeBuffers::won({&shared, buffer_of(record)}, is_swapped ? buffer_of(expected) : buffer_of(record));
  }
}

}  // namespace ps_shm::test
