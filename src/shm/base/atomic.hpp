// The atomic word of the segments, with the memory order in each operation's name, and the fences.
//
// All operations are wait-free. A compare-exchange is a single attempt.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "shm/base/fault_points.hpp"
#include "shm/base/memory_model.hpp"

namespace ps_shm::shm {

template <class T>
struct AtomicShm {
  std::atomic<T> value;

  T load_acquire(const Site& site = Site::current()) const noexcept { return load(std::memory_order_acquire, site); }
  T load_relaxed(const Site& site = Site::current()) const noexcept { return load(std::memory_order_relaxed, site); }
  void store_release(T desired, const Site& site = Site::current()) noexcept {
    store(desired, std::memory_order_release, site);
  }
  void store_relaxed(T desired, const Site& site = Site::current()) noexcept {
    store(desired, std::memory_order_relaxed, site);
  }
  T fetch_add_relaxed(T delta, const Site& site = Site::current()) noexcept {
    if (auto* model = model_of(this))
      return of(model->change(this, sizeof(T), Change::kAdd, bits(delta), std::memory_order_relaxed, site));
    return before(true).fetch_add(delta, std::memory_order_relaxed);
  }
  T fetch_add_acq_rel(T delta, const Site& site = Site::current()) noexcept {
    if (auto* model = model_of(this))
      return of(model->change(this, sizeof(T), Change::kAdd, bits(delta), std::memory_order_acq_rel, site));
    return before(true).fetch_add(delta, std::memory_order_acq_rel);
  }
  T fetch_or_acq_rel(T mask, const Site& site = Site::current()) noexcept {
    if (auto* model = model_of(this))
      return of(model->change(this, sizeof(T), Change::kOr, bits(mask), std::memory_order_acq_rel, site));
    return before(true).fetch_or(mask, std::memory_order_acq_rel);
  }
  T fetch_and_acq_rel(T mask, const Site& site = Site::current()) noexcept {
    if (auto* model = model_of(this))
      return of(model->change(this, sizeof(T), Change::kAnd, bits(mask), std::memory_order_acq_rel, site));
    return before(true).fetch_and(mask, std::memory_order_acq_rel);
  }

  // For guesses that affect only speed. They are not steps of any protocol.
  T hint() const noexcept { return value.load(std::memory_order_relaxed); }
  void leave_hint(T guess) noexcept { value.store(guess, std::memory_order_relaxed); }

  // For a word with a single writer: a plain addition without a locked instruction.
  void bump_relaxed(T delta) noexcept { store_relaxed(static_cast<T>(load_relaxed() + delta)); }

  // Returns true if the word was `expected` and is now `desired`. Otherwise stores the current value into `expected`.
  [[nodiscard]] bool try_exchange_acq_rel(T& expected, T desired, const Site& site = Site::current()) noexcept {
    if (auto* model = model_of(this)) {
      std::uint64_t there = bits(expected);
      const bool won = model->compare_exchange(this, sizeof(T), there, bits(desired), std::memory_order_acq_rel,
                                               std::memory_order_acquire, site);
      expected = of(there);
      return won;
    }
    return before(true).compare_exchange_strong(expected, desired, std::memory_order_acq_rel,
                                                std::memory_order_acquire);
  }

  T load(std::memory_order order, const Site& site) const noexcept {
    if (auto* model = model_of(this)) return of(model->load(this, sizeof(T), order, site));
    return before(false).load(order);
  }
  void store(T desired, std::memory_order order, const Site& site) noexcept {
    if (auto* model = model_of(this)) return model->store(this, sizeof(T), bits(desired), order, site);
    before(true).store(desired, order);
  }

  // Returns the word, after the hook that tests install for accesses to it (fault_points.hpp).
  const std::atomic<T>& before(bool stores) const noexcept {
    shared_access(this, stores);
    return value;
  }
  std::atomic<T>& before(bool stores) noexcept {
    shared_access(this, stores);
    return value;
  }

  // Conversions between a value and the bits that a memory model uses for it (memory_model.hpp).
  static std::uint64_t bits(T word) noexcept {
    std::uint64_t all = 0;
    std::memcpy(&all, &word, sizeof(T));
    return all;
  }
  static T of(std::uint64_t all) noexcept {
    T word;
    std::memcpy(&word, &all, sizeof(T));
    return word;
  }

  static_assert(std::atomic<T>::is_always_lock_free, "a lock hidden in an atomic would be private to each process");
  static_assert(sizeof(std::atomic<T>) == sizeof(T), "the segment's offsets count on plain words");
};

// All fences go through here: to a test's memory model, or to the processor.
inline void fence(std::memory_order order, const Site& site) noexcept {
  if (auto* model = model_of_fences()) return model->fence(order, site);
  std::atomic_thread_fence(order);
}

// Pairs with fence_acquire: a thread that reads anything stored after this fence and then executes its own
// fence_acquire sees everything that was stored before this one.
inline void fence_release(const Site& site = Site::current()) noexcept { fence(std::memory_order_release, site); }
inline void fence_acquire(const Site& site = Site::current()) noexcept { fence(std::memory_order_acquire, site); }

// Keeps a store before the fence ordered before a load after it. If two threads each store and then read the other's
// word, at least one of them sees the other's store (waiting.W1).
inline void fence_store_load(const Site& site = Site::current()) noexcept { fence(std::memory_order_seq_cst, site); }

// A plain word that another process may change, read exactly once, so that the value checked is the value used.
template <class T>
T read_once(const T& word) noexcept {
  return __atomic_load_n(&word, __ATOMIC_RELAXED);
}

// Whether a 16-byte exchange is a single instruction here. The compiler's __atomic_ builtins do not take advantage of
// this.
#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(__SANITIZE_THREAD__)  // TSan gets the 8-byte form
inline constexpr bool kHas16ByteExchange = true;
#else
inline constexpr bool kHas16ByteExchange = false;
#endif

inline void spin_pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace ps_shm::shm
