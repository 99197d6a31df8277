// Waiting for a published fact: spin briefly, yield, then sleep on a futex word in slices.
//
// A kill between a store and its wake, or a lock that a death has dropped, wakes nobody. So every wait is cut into
// slices, and looks again at the fact, and at those it waits for, after each (waiting.W2).
// Waits are for published facts, and never for a lock (invariant.I1).
#pragma once

#include <cstdint>

#include "shm/atomic.hpp"

namespace ps::shm {

inline constexpr int kWaitSliceMs = 10;  // waiting.W2

// How long to look at a fact before sleeping. A wake-up on another core takes some 10 us, so it pays to look for about
// as long, but only where the awaited process has a core of its own. Otherwise it is to have this one at once
// (benches/tuning.py).
struct Patience {
  int spins = 400;   // about 20 us
  int yields = 100;  // after them, for other processes of whatever kind
};

// For one of so many processes that wait for each other.
Patience patience_among(std::uint32_t processes) noexcept;

// A futex word: bit 0 says that somebody may be asleep, the rest counts announcements, so that announcing costs no
// system call where nobody sleeps. 2^31 announcements within one slice could make one value look like another.
inline constexpr std::uint32_t kSleeper = 1, kAnnouncement = 2;

// Says that the caller is about to sleep; returns the value to sleep on. Look at the fact after this: with a fence on
// each side between the store and the look, the announcer sees the sleeper, or the sleeper the fact (waiting.W1).
inline std::uint32_t futex_prepare(AtomicShm<std::uint32_t>& word) noexcept {
  const std::uint32_t seen = word.fetch_or_acq_rel(kSleeper) | kSleeper;  // (waiting.W1) pairs with futex_announce
  fence_store_load();                                                     // (waiting.W1) the bit before the look
  return seen;
}

// Lets whoever wants this core have it.
void give_up_core() noexcept;

// Sleeps until the word differs from `seen`, a wake, or the end of the slice.
void futex_wait_slice(AtomicShm<std::uint32_t>& word, std::uint32_t seen) noexcept;

// Tells all waiters that a fact has changed, after its store (waiting.W1). Writes nothing where nobody is to sleep.
void futex_announce(AtomicShm<std::uint32_t>& word) noexcept;

// Waits until fact() is true. each_slice() runs before every sleep; it looks at deadlines and at the dead, and throws
// to end the wait.
template <class Fact, class EachSlice>
void wait_for_fact(AtomicShm<std::uint32_t>& word, Fact&& fact, EachSlice&& each_slice, Patience patience = {}) {
  if (model_of(&word) != nullptr) patience = {1, 0};  // a test's model has no time
  for (int spin = 0; spin < patience.spins; ++spin) {
    if (fact()) return;
    spin_pause();
  }
  for (int yield = 0; yield < patience.yields; ++yield) {
    if (fact()) return;
    give_up_core();
  }
  for (;;) {
    const std::uint32_t seen = futex_prepare(word);  // before the look: a fact that comes after it changes the word
    if (fact()) return;
    each_slice();
    futex_wait_slice(word, seen);
  }
}

}  // namespace ps::shm
