// Waiting for a published fact: spin briefly, yield, then sleep on a futex word in slices.
//
// A kill between a store and its wake wakes nobody, and neither does a lock that is released by a death. Every wait is
// therefore divided into slices. After each slice it checks again the fact and the processes that it waits for
// (waiting.W2). Waits are for published facts, never for a lock (invariant.I1).
#pragma once

#include <cstdint>

#include "shm/base/atomic.hpp"

namespace ps_shm::shm {

inline constexpr int kWaitSliceMs = 10;  // waiting.W2
inline constexpr long kWaitSliceNs = kWaitSliceMs * 1'000'000L;

// How long to poll before sleeping. A wake-up on another core takes some 10 us, so polling for about as long pays off,
// but only if the awaited process has a core of its own. Otherwise the waiter should give up its core at once
// (benches/tuning.py).
struct Patience {
  int spins = 400;   // about 20 us
  int yields = 100;  // after the spins, to let any other process run
};

// The patience of one of `processes` processes that wait for each other.
Patience patience_among(std::uint32_t processes) noexcept;

// A futex word. Bit 0 says that a process may be asleep. The other bits count announcements, so that an announcement
// costs no system call if nobody sleeps. After 2^31 announcements within one slice, a new value could be mistaken for
// an old one.
inline constexpr std::uint32_t kSleeper = 1, kAnnouncement = 2;

// Announces that the caller is about to sleep, and returns the value to sleep on. The caller must check the fact after
// this call. Each side has a fence between its store and its read, so either the announcer sees the sleeper's bit or
// the sleeper sees the fact (waiting.W1).
inline std::uint32_t futex_prepare(AtomicShm<std::uint32_t>& word) noexcept {
  const std::uint32_t seen = word.fetch_or_acq_rel(kSleeper) | kSleeper;  // (waiting.W1) pairs with futex_announce
  fence_store_load();                                                     // (waiting.W1) the bit before the check
  return seen;
}

// Yields the core to any process that can run.
void give_up_core() noexcept;

// Sleeps until the word differs from `seen`, until a wake, or until the end of the slice.
void futex_wait_slice(AtomicShm<std::uint32_t>& word, std::uint32_t seen) noexcept;

// Tells all waiters that a fact has changed. Call after the fact's store (waiting.W1). Writes nothing if nobody may be
// asleep.
void futex_announce(AtomicShm<std::uint32_t>& word) noexcept;

// Waits until fact() is true. each_slice() runs before every sleep: it checks deadlines and which processes have died,
// and throws to end the wait.
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
    const std::uint32_t seen = futex_prepare(word);  // before the check: a fact that comes later changes the word
    if (fact()) return;
    each_slice();
    futex_wait_slice(word, seen);
  }
}

}  // namespace ps_shm::shm
