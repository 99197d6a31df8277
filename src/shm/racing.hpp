// Data that may be overwritten while it is read: the one place where such reads and writes happen.
//
// Why a plain memcpy is sound here: nobody uses what it brought before the stamp has been checked behind an acquire
// fence (slot.V3). Bytes of two versions are thrown away unseen. They are floats, so any bits are harmless to compute
// with meanwhile. A word-by-word relaxed copy would cost two thirds of the speed for cache-resident sizes. The thread
// sanitizer can't know this, and gets relaxed atomics. In place there is no stamp: an element is one aligned word, which
// no copy tears, and readers use the copy alone, behind a fence for the compiler.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "shm/atomic.hpp"

namespace ps::shm {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// Word by word, where a test's model has one of both sides (memory_model.hpp).
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
    shared_access(in, false);  // tests let others write between the halves
    std::memcpy(out + count / 2, in + count / 2, (count - count / 2) * sizeof(float));
  } else {
    std::memcpy(out, in, count * sizeof(float));
  }
  asm volatile("" ::: "memory");  // the compiler cannot read `in` again where it is asked for `out`
}

// Private room for the largest chunk, whose payload is below 2^18 floats; for the thread sanitizer only.
inline float* racing_scratch(std::size_t which) {
  thread_local std::vector<float> rooms[3];  // on the heap: thread-local arrays come out of every thread's stack
  rooms[which].resize(1 << 18);
  return rooms[which].data();
}

// Returns update(out, in), where both lie in the segment and others may read `out` or write `in` meanwhile.
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

}  // namespace ps::shm
