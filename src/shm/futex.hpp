// Waiting for a published fact: spin briefly, then sleep on a futex word in slices.
//
// A kill between a store and its wake, or a lock that a death has dropped, wakes nobody (W2): so every wait is cut into
// slices, and looks again at the fact, and at those it waits for, after each.
#pragma once

#include <cstdint>

#include "shm/atomic.hpp"

namespace ps::shm {

inline constexpr int kWaitSliceMs = 10;  // W2
inline constexpr int kWaitSpins = 400;   // about 20 us: longer than a wake-up on another core, short beside a slice

// A futex word: bit 0 says that somebody may be asleep, the rest counts announcements, so that announcing costs no
// system call where nobody sleeps. 2^31 announcements within one slice would be needed to mistake one value for another.
inline constexpr std::uint32_t kSleeper = 1, kAnnouncement = 2;

// Says that the caller is about to sleep; returns the value to sleep on. Look at the fact after this: one
// read-modify-write (acq_rel) on each side, so that of who publishes and who looks at least one sees the other (W1).
inline std::uint32_t futex_prepare(AtomicShm<std::uint32_t>& word) noexcept {
  return word.fetch_or_acq_rel(kSleeper) | kSleeper;
}

// Sleeps until the word differs from `seen`, a wake, or the end of the slice.
void futex_wait_slice(AtomicShm<std::uint32_t>& word, std::uint32_t seen) noexcept;

// Tells all waiters that a fact has changed, after its store (W1).
void futex_announce(AtomicShm<std::uint32_t>& word) noexcept;

// The same without the wake, where nobody sleeps for this fact alone.
inline void futex_mark(AtomicShm<std::uint32_t>& word) noexcept { word.fetch_add_acq_rel(kAnnouncement); }

// Waits until fact() is true. each_slice() runs before every sleep; it looks at deadlines and at the dead, and throws
// to end the wait.
template <class Fact, class EachSlice>
void wait_for_fact(AtomicShm<std::uint32_t>& word, Fact&& fact, EachSlice&& each_slice) {
  for (int spin = 0; spin < kWaitSpins; ++spin) {
    if (fact()) return;
    spin_pause();
  }
  for (;;) {
    const std::uint32_t seen = futex_prepare(word);  // before the look: a fact that comes after it changes the word
    if (fact()) return;
    each_slice();
    futex_wait_slice(word, seen);
  }
}

}  // namespace ps::shm
