#include "shm/base/futex.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "shm/base/clock.hpp"

namespace ps_shm::shm {

void give_up_core() noexcept { sched_yield(); }

Patience patience_among(std::uint32_t processes) noexcept {
  static const std::uint32_t cores = [] {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<std::uint32_t>(CPU_COUNT(&set)) : 1U;
  }();
  return processes <= cores ? Patience{} : Patience{.spins = 10};
}

// FUTEX_WAIT and not FUTEX_WAIT_PRIVATE, since the waiters are other processes.
void futex_wait_slice(AtomicShm<std::uint32_t>& word, std::uint32_t seen) noexcept {
  if (auto* model = model_of(&word)) return model->sleep(&word, seen);
  if (Clock* clock = test_clock()) return clock->wait(word.value, seen, kWaitSliceNs);
  const timespec slice{0, kWaitSliceNs};
  syscall(SYS_futex, &word.value, FUTEX_WAIT, seen, &slice, nullptr, 0);
}

void futex_announce(AtomicShm<std::uint32_t>& word) noexcept {
  fence_store_load();                                 // (waiting.W1) the fact before the check
  if ((word.load_relaxed() & kSleeper) == 0) return;  // a later sleeper sets its bit, checks the fact and finds it
  word.fetch_and_acq_rel(~kSleeper);  // (waiting.W1) a bit that is set from here on is followed by a check of the fact
  // After that: otherwise a sleeper of before and one that sets the bit after it would have the same word, and the first
  // would sleep although a third process has found no bit to announce.
  word.fetch_add_acq_rel(kAnnouncement);  // (waiting.W1) pairs with futex_prepare
  if (auto* model = model_of(&word)) return model->wake(&word);
  syscall(SYS_futex, &word.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace ps_shm::shm
