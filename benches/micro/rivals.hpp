// What else one could do with a vector in shared memory: adds without any protocol, element-wise atomics, spin locks.
//
// Each is written as well as we can: SIMD wherever it may be, every process from a place of its own on, locks on cache
// lines of their own. None of the exact ones with a lock survives a process that dies in it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "../processes.hpp"

namespace ps_shm::bench {

// Test-and-test-and-set, on cache lines of its own; yields after a while, as a holder may not be running.
struct alignas(128) SpinLock {
  std::atomic<std::uint32_t> held;

  // Returns whether it had to wait.
  bool lock() noexcept;
  void unlock() noexcept { held.store(0, std::memory_order_release); }
};

// A vector of zeros on pages of /dev/shm, with the locks that some of the rivals take.
class RivalVector {
 public:
  static constexpr std::uint64_t kBlock = 16'384;  // floats: 64 KiB

  explicit RivalVector(std::uint64_t floats);

  float* values() const noexcept { return values_.as<float>(); }
  std::uint64_t size() const noexcept { return size_; }
  std::uint64_t blocks() const noexcept { return (size_ + kBlock - 1) / kBlock; }
  SpinLock& lock(std::uint64_t block) const noexcept { return locks_.as<SpinLock>()[block]; }

  // Share of so many adds of 1 that the values do not show.
  double lost(std::uint64_t adds) const noexcept;

 private:
  std::uint64_t size_;
  SharedBytes values_, locks_;
};

// Adds `delta` to the vector, beginning at about element `start`; returns how often it had to try again or to wait.
using RivalAdd = std::uint64_t (*)(RivalVector& vector, const float* delta, std::uint64_t start);

struct Rival {
  std::string name;
  RivalAdd add;
  bool is_exact;
};
const std::vector<Rival>& rivals();
const Rival& rival(const std::string& name);

// Where the number-th of so many processes begins.
std::uint64_t start_of(const RivalVector& vector, int number, int processes) noexcept;

// Copies the vector block by block, each under its lock.
void locked_copy(const RivalVector& vector, float* out) noexcept;

// target[i] += delta[i] with SIMD.
void simd_add(float* target, const float* delta, std::uint64_t count) noexcept;

// One float by 4-byte compare-exchange; returns the failed ones.
std::uint64_t exchange_add(float& target, float delta) noexcept;

}  // namespace ps_shm::bench
