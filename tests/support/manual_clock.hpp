// A clock that stands still until the test advances it; it replaces the kernel's clock (shm/base/clock.hpp).
//
// While one exists, now_ns() of this process returns its time, and every sleep of the library lasts until that time is
// reached, a wake, or a signal. So a test needs neither sleeps of its own nor bounds on real time:
//
//   ManualClock clock;
//   Stepping step(worker);               // a thread that has to wait
//   REQUIRE(clock.wait_for_sleepers(1));  // it waits
//   clock.advance(kSlice);               // its slice is over; it has polled, and sleeps again
//
// A sleep that ends while the clock stands still was ended by a wake. A forked child has the kernel's clock.
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "shm/base/clock.hpp"
#include "shm/base/futex.hpp"
#include "support/processes.hpp"

namespace ps_shm::test {

inline constexpr std::uint64_t kSlice = shm::kWaitSliceNs, kSecond = 1'000'000'000;

class ManualClock final : public shm::Clock {
 public:
  // kBlock: a sleeping thread waits for advance(). kPass: a sleep advances the time to its end and returns at once, for
  // tests with one thread; with more threads the time would advance arbitrarily.
  enum class Sleeps { kBlock, kPass };

  explicit ManualClock(Sleeps sleeps = Sleeps::kBlock) : passes_(sleeps == Sleeps::kPass) {
    static const int of_children = pthread_atfork(nullptr, nullptr, [] { shm::g_clock = nullptr; });
    if (of_children != 0 || shm::g_clock.exchange(this) != nullptr) throw std::runtime_error("a second clock");
  }
  // Threads that still sleep continue, in kernel time from then on.
  ~ManualClock() {
    let_sleeps_pass();
    shm::g_clock = nullptr;
    while (sleepers() != 0) std::this_thread::yield();
  }
  ManualClock(const ManualClock&) = delete;
  ManualClock& operator=(const ManualClock&) = delete;

  // Advances the time. Returns once no thread sleeps any more whose time has come.
  void advance(std::uint64_t ns) {
    now_ += ns;
    wake([&](const Sleeper& sleeper) { return sleeper.until <= now_; });
  }
  // From now on, for sleeps that begin later.
  void set(Sleeps sleeps) noexcept { passes_ = sleeps == Sleeps::kPass; }
  // Ends all sleeps in progress, and lets later ones pass: for the end of a test.
  void let_sleeps_pass() {
    passes_ = true;
    wake([](const Sleeper&) { return true; });
  }

  std::uint64_t passed_ns() const noexcept { return now_ - began_; }
  std::size_t sleepers() {
    const std::lock_guard lock(mutex_);
    return sleepers_.size();
  }
  // Whether this many threads sleep at the same time within the test's time limit.
  [[nodiscard]] bool wait_for_sleepers(std::size_t count) {
    return eventually([&] { return sleepers() >= count; });
  }

  std::uint64_t now_ns() noexcept override { return now_; }
  void sleep(std::uint64_t ns) noexcept override {
    std::atomic<std::uint32_t> nobody_stores{0};
    wait(nobody_stores, 0, ns);
  }
  void wait(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::uint64_t ns) noexcept override {
    Sleeper sleeper{&word, 0};
    {
      const std::lock_guard lock(mutex_);
      sleeper.until = now_ + ns;
      sleepers_.push_back(&sleeper);
    }
    bool has_signal = false;
    while (word == seen && now_ < sleeper.until && !has_signal) {
      if (passes_) {
        if (word == seen) now_ = std::max<std::uint64_t>(now_, sleeper.until);
        break;
      }
      has_signal = syscall(SYS_futex, &word, FUTEX_WAIT, seen, nullptr, nullptr, 0) != 0 && errno == EINTR;
    }
    const std::lock_guard lock(mutex_);
    std::erase(sleepers_, &sleeper);
  }

 private:
  struct Sleeper {
    std::atomic<std::uint32_t>* word;
    std::uint64_t until;
  };

  // Waits until none of them is left: a thread may not have reached its system call yet.
  template <class Which>
  void wake(Which&& which) {
    for (bool is_any = true; is_any;) {
      {
        const std::lock_guard lock(mutex_);
        is_any = false;
        for (const Sleeper* sleeper : sleepers_)
          if (which(*sleeper)) {
            is_any = true;
            syscall(SYS_futex, sleeper->word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
          }
      }
      if (is_any) std::this_thread::yield();
    }
  }

  const std::uint64_t began_ = shm::monotonic_ns();
  std::atomic<std::uint64_t> now_{began_};
  std::atomic<bool> passes_;
  std::mutex mutex_;
  std::vector<Sleeper*> sleepers_;
};

}  // namespace ps_shm::test
