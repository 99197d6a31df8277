// The atomic word of the segments, with the memory order in each operation's name, and the two fences.
//
// All operations are wait-free but for compare_exchange, which is one attempt.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "shm/fault_points.hpp"
#include "shm/memory_model.hpp"

namespace ps::shm {

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

  // For guesses that nothing but speed depends on: no protocol has them among its steps.
  T hint() const noexcept { return value.load(std::memory_order_relaxed); }
  void leave_hint(T guess) noexcept { value.store(guess, std::memory_order_relaxed); }

  // For a word with one writer: a plain addition, without a locked instruction.
  void bump_relaxed(T delta) noexcept { store_relaxed(static_cast<T>(load_relaxed() + delta)); }

  // True: `expected` was there and `desired` is now. False: `expected` holds what is there.
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

  // The word, after what tests do before an access to it (fault_points.hpp).
  const std::atomic<T>& before(bool stores) const noexcept {
    shared_access(this, stores);
    return value;
  }
  std::atomic<T>& before(bool stores) noexcept {
    shared_access(this, stores);
    return value;
  }

  // What a model of the memory calls a value (memory_model.hpp).
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

#pragma GCC diagnostic push
#if defined(__SANITIZE_THREAD__)
#pragma GCC diagnostic ignored "-Wtsan"  // unmodelled fences are harmless: under TSan racing data is atomic itself
#endif

// All fences: of the model of a test, or the processor's.
inline void fence(std::memory_order order, const Site& site) noexcept {
  if (auto* model = model_of_fences()) return model->fence(order, site);
  std::atomic_thread_fence(order);
}

// Pairs with fence_acquire: a thread that has read anything stored after this fence, and then passes its own
// fence_acquire, sees all that was stored before this one.
inline void fence_release(const Site& site = Site::current()) noexcept { fence(std::memory_order_release, site); }
inline void fence_acquire(const Site& site = Site::current()) noexcept { fence(std::memory_order_acquire, site); }

// A store before it and a load behind it stay in that order for whoever does the same: of two that each store and then
// look at the other's, at least one sees the other (waiting.W1).
inline void fence_store_load(const Site& site = Site::current()) noexcept { fence(std::memory_order_seq_cst, site); }

#pragma GCC diagnostic pop

// A plain word that another process may change: read once, so that what was checked is what is used.
template <class T>
T read_once(const T& word) noexcept {
  return __atomic_load_n(&word, __ATOMIC_RELAXED);
}

inline void spin_pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace ps::shm
