// The clock of all times in the segments, and sleeps that are based on it.
//
// Code that waits reads the time with now_ns() and sleeps with sleep_ns(), sleep_until_ns() or futex_wait_slice()
// (futex.hpp). A test can replace the clock behind these four functions (tests/support/manual_clock.hpp), so that
// time-outs pass without waiting. Short spins in hot paths read monotonic_ns(), which is never replaced and costs one
// vDSO call.
//
// CLOCK_MONOTONIC may differ between processes of one machine: a time namespace, as containers and restored processes
// (CRIU) have, adds an offset to it. now_ns() takes this offset away, so all times in the segments are those of the
// machine's own namespace.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <optional>

namespace ps_shm::shm {

// A clock that a test uses instead of the kernel's. Its functions may be called from any thread.
class Clock {
 public:
  virtual std::uint64_t now_ns() noexcept = 0;
  // Returns after `ns`, or when a signal arrives.
  virtual void sleep(std::uint64_t ns) noexcept = 0;
  // As FUTEX_WAIT: returns when the word differs from `seen`, at a FUTEX_WAKE, after `ns`, or when a signal arrives.
  virtual void wait(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::uint64_t ns) noexcept = 0;

 protected:
  ~Clock() = default;
};

// The clock that a test has set in this process; null in all other programs, which use the kernel's clock.
inline std::atomic<Clock*> g_clock{nullptr};

// Relaxed: a test sets the clock before it starts the threads that use it.
inline Clock* test_clock() noexcept { return g_clock.load(std::memory_order_relaxed); }

// The offset of this process's time namespace, modulo 2^64.
inline std::atomic<std::uint64_t> g_time_offset{0};

// Reads that offset, if /proc shows it. Called by each process that makes or maps a segment.
void note_time_namespace() noexcept;

// CLOCK_MONOTONIC of this process: for durations, and for times that are given to the user.
inline std::uint64_t monotonic_ns() noexcept {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

// CLOCK_MONOTONIC of the machine, the same in all of its processes; or the test clock's time. Relaxed: the offset stays
// the same while a process runs.
inline std::uint64_t now_ns() noexcept {
  if (Clock* clock = test_clock()) [[unlikely]]
    return clock->now_ns();
  return monotonic_ns() - g_time_offset.load(std::memory_order_relaxed);
}

// Sleeps for `ns`, at most a second; a signal ends the sleep early.
inline void sleep_ns(std::uint64_t ns) noexcept {
  if (Clock* clock = test_clock()) [[unlikely]]
    return clock->sleep(ns);
  constexpr std::uint64_t kSecond = 1'000'000'000;
  const timespec length{ns >= kSecond ? 1 : 0, static_cast<long>(ns >= kSecond ? 0 : ns)};
  nanosleep(&length, nullptr);
}

// Sleeps until now_ns() is `until`; a signal ends the sleep early.
inline void sleep_until_ns(std::uint64_t until) noexcept {
  if (Clock* clock = test_clock()) [[unlikely]] {
    const std::uint64_t now = clock->now_ns();
    return clock->sleep(until > now ? until - now : 0);
  }
  constexpr std::uint64_t kSecond = 1'000'000'000;
  const std::uint64_t here = until + g_time_offset.load(std::memory_order_relaxed);
  const timespec time{static_cast<std::time_t>(here / kSecond), static_cast<long>(here % kSecond)};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr);
}

// CLOCK_REALTIME, for times that are shown to users.
inline std::uint64_t unix_now_ns() noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

// Converts a duration. At most a century, since 64 bits of nanoseconds do not hold much more; without a limit, a century.
inline std::uint64_t to_ns(double seconds) noexcept {
  return seconds > 0 ? static_cast<std::uint64_t>(std::min(seconds, 3e9) * 1e9) : 0;
}
inline std::uint64_t to_ns(std::optional<std::chrono::duration<double>> limit) noexcept {
  return to_ns(limit ? limit->count() : 3e9);
}

}  // namespace ps_shm::shm
