#include "shm/futex.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace ps::shm {

void give_up_core() noexcept { sched_yield(); }

Patience patience_among(std::uint32_t processes) noexcept {
  static const std::uint32_t cores = [] {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<std::uint32_t>(CPU_COUNT(&set)) : 1U;
  }();
  return processes <= cores ? Patience{} : Patience{.spins = 10};
}

// FUTEX_WAIT and not FUTEX_WAIT_PRIVATE: the waiters are other processes.
void futex_wait_slice(AtomicShm<std::uint32_t>& word, std::uint32_t seen) noexcept {
  if (auto* model = model_of(&word)) return model->sleep(&word, seen);
  const timespec slice{0, kWaitSliceMs * 1'000'000L};
  syscall(SYS_futex, &word.value, FUTEX_WAIT, seen, &slice, nullptr, 0);
}

void futex_announce(AtomicShm<std::uint32_t>& word) noexcept {
  fence_store_load();                                 // (waiting.W1) the fact before the look
  if ((word.load_relaxed() & kSleeper) == 0) return;  // a later sleeper looks at the fact after its bit, and finds it
  word.fetch_add_acq_rel(kAnnouncement);              // (waiting.W1) pairs with futex_prepare
  word.fetch_and_acq_rel(~kSleeper);  // (waiting.W1) a bit set from here on comes with a look at the fact
  if (auto* model = model_of(&word)) return model->wake(&word);
  syscall(SYS_futex, &word.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace ps::shm
