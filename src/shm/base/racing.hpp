// Copies of data that another process may overwrite during the copy. All such reads and writes happen here.
//
// A plain memcpy is sound here, because its result is used only after a check behind an acquire fence (slot.V3,
// slot.V13).
// A mixture of two versions is discarded. The data are floats, so computing with any bits in the meantime does no
// harm. A word-by-word relaxed copy would cost two thirds of the speed for sizes that fit into the cache. The thread
// sanitizer cannot know this and gets relaxed atomics. In-place data has no stamp: each element is one aligned word,
// which no copy tears, and readers use only the copy, behind a compiler barrier.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "shm/base/atomic.hpp"

namespace ps_shm::shm {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// Copies word by word if a test's memory model covers either side (memory_model.hpp).
inline bool copy_in_model(float* out, const float* in, std::size_t count) noexcept {
  if (model_of(out) == nullptr && model_of(in) == nullptr) return false;
  for (std::size_t i = 0; i < count; ++i)
    reinterpret_cast<AtomicShm<float>*>(out + i)->store_relaxed(
        reinterpret_cast<const AtomicShm<float>*>(in + i)->load_relaxed());
  return true;
}

inline void racing_copy(float* out, const float* in, std::size_t count) noexcept {
  if constexpr (kThreadSanitizer) {
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t bits;
      __atomic_load(reinterpret_cast<const std::uint32_t*>(in + i), &bits, __ATOMIC_RELAXED);
      __atomic_store(reinterpret_cast<std::uint32_t*>(out + i), &bits, __ATOMIC_RELAXED);
    }
  } else if constexpr (kFaultPointsAreOn) {
    if (copy_in_model(out, in, count)) return;
    std::memcpy(out, in, count / 2 * sizeof(float));
    shared_access(in, false);  // tests let other threads write between the halves
    std::memcpy(out + count / 2, in + count / 2, (count - count / 2) * sizeof(float));
  } else {
    std::memcpy(out, in, count * sizeof(float));
  }
  asm volatile("" ::: "memory");  // keeps the compiler from reading `in` again instead of `out`
}

// Private memory for the largest chunk, whose payload is below 2^18 floats. Used only by the thread sanitizer and
// models.
inline float* racing_scratch(std::size_t which) {
  thread_local std::vector<float> buffers[3];  // on the heap, since thread-local arrays use up every thread's stack
  buffers[which].resize(1 << 18);
  return buffers[which].data();
}

// Returns update(out, in). Both lie in the segment; other processes may read `out` or write `in` at the same time.
template <class Update>
bool racing_update(float* out, const float* in, std::size_t count, Update&& update) {
  if (kThreadSanitizer || model_of(out) != nullptr) {
    float *before = racing_scratch(0), *after = racing_scratch(1);
    racing_copy(before, in, count);
    const bool good = update(after, static_cast<const float*>(before));
    if (good) racing_copy(out, after, count);
    return good;
  } else {
    return update(out, in);
  }
}

}  // namespace ps_shm::shm
