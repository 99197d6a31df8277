#include "exchange.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace ps_shm::bench {

const char* to_string(Waiting waiting) noexcept {
  switch (waiting) {
    case Waiting::kSpin:
      return "spin";
    case Waiting::kSpinThenFutex:
      return "spin_then_futex";
    case Waiting::kFutex:
      return "futex";
  }
  return "unknown";
}

void Exchange::meet(int number, std::uint32_t round) const noexcept {
  auto& mine = lines_.as<Line>()[number].word;
  if (waiting_ == Waiting::kSpin)
    mine.store(2 * round, std::memory_order_release);
  else if ((mine.exchange(2 * round, std::memory_order_acq_rel) & 1) != 0)
    syscall(SYS_futex, &mine, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  for (int other = 0; other < processes_; ++other)
    if (other != number) wait_for(lines_.as<Line>()[other].word, round);
}

void Exchange::wait_for(std::atomic<std::uint32_t>& word, std::uint32_t round) const noexcept {
  const auto has_come = [&](std::uint32_t seen) { return seen / 2 >= round; };
  constexpr int kSpins = 400;  // as our own waits: about 20 us
  for (int spin = 0; waiting_ == Waiting::kSpin || (waiting_ == Waiting::kSpinThenFutex && spin < kSpins); ++spin) {
    if (has_come(word.load(std::memory_order_acquire))) return;
    if (spin < 10 * kSpins)
      spin_pause();
    else
      sched_yield();  // whom we wait for may need this core
  }
  for (;;) {
    const std::uint32_t seen = word.load(std::memory_order_acquire);
    if (has_come(seen)) return;
    // Marked before the sleep: who publishes after that finds the mark, and the kernel finds the word changed.
    const std::uint32_t marked = word.fetch_or(1, std::memory_order_acq_rel) | 1;
    if (has_come(marked)) return;
    syscall(SYS_futex, &word, FUTEX_WAIT, marked, nullptr, nullptr, 0);
  }
}

}  // namespace ps_shm::bench
