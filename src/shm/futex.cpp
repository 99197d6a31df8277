#include "shm/futex.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace ps::shm {

// FUTEX_WAIT and not FUTEX_WAIT_PRIVATE: the waiters are other processes.
void futex_wait_slice(AtomicShm<std::uint32_t>& word, std::uint32_t seen) noexcept {
  const timespec slice{0, kWaitSliceMs * 1'000'000L};
  syscall(SYS_futex, &word.value, FUTEX_WAIT, seen, &slice, nullptr, 0);
}

void futex_announce(AtomicShm<std::uint32_t>& word) noexcept {
  if ((word.fetch_add_acq_rel(kAnnouncement) & kSleeper) == 0) return;
  word.fetch_and_acq_rel(~kSleeper);  // who sets it again from here on finds the word changed and looks again
  syscall(SYS_futex, &word.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace ps::shm
