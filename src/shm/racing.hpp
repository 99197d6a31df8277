// Data that may be overwritten while it is read: the one place where such reads and writes happen.
//
// Why a plain memcpy is sound here: nobody uses what it brought before the stamp (versioned_slot.hpp, V3) has been
// checked again behind an acquire fence; bytes of two versions are thrown away unseen. They are floats, so any bits
// are harmless to compute with meanwhile. A word-by-word relaxed copy would cost two thirds of the speed for
// cache-resident sizes. The thread sanitizer, which can't know this, gets relaxed atomics.
#pragma once

#include <cstddef>
#include <cstring>

#include "shm/atomic.hpp"

namespace ps::shm {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

inline void racing_copy(float* out, const float* in, std::size_t count) noexcept {
  if constexpr (kThreadSanitizer) {
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t bits;
      __atomic_load(reinterpret_cast<const std::uint32_t*>(in + i), &bits, __ATOMIC_RELAXED);
      __atomic_store(reinterpret_cast<std::uint32_t*>(out + i), &bits, __ATOMIC_RELAXED);
    }
  } else {
    std::memcpy(out, in, count * sizeof(float));
  }
}

// Runs update(out, in) where both lie in the segment and others may read `out` or write `in` meanwhile.
template <class Update>
void racing_update(float* out, const float* in, std::size_t count, Update&& update) {
  if constexpr (kThreadSanitizer) {
    thread_local float before[1 << 18], after[1 << 18];  // the largest chunk's payload is below 2^18 floats
    racing_copy(before, in, count);
    update(after, before);
    racing_copy(out, after, count);
  } else {
    update(out, in);
  }
}

}  // namespace ps::shm
