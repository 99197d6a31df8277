#include "rivals.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "update/simd.hpp"

namespace ps_shm::bench {
namespace {

// Two parts, so that every process can begin at a place of its own.
template <class Part>
std::uint64_t in_two_parts(RivalVector& vector, const float* delta, std::uint64_t start, Part&& part) {
  std::uint64_t retries = part(vector.values() + start, delta + start, vector.size() - start);
  if (start != 0) retries += part(vector.values(), delta, start);
  return retries;
}

std::uint64_t racy_simd(RivalVector& vector, const float* delta, std::uint64_t start) {
  return in_two_parts(vector, delta, start, [](float* target, const float* from, std::uint64_t count) {
    simd_add(target, from, count);
    return std::uint64_t{0};
  });
}

// What std::atomic_ref<float>::fetch_add is; written out to count its failures.
std::uint64_t atomic_ref(RivalVector& vector, const float* delta, std::uint64_t start) {
  return in_two_parts(vector, delta, start, [](float* target, const float* from, std::uint64_t count) {
    std::uint64_t retries = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::atomic_ref<float> element(target[i]);
      float seen = element.load(std::memory_order_relaxed);
      while (!element.compare_exchange_weak(seen, seen + from[i], std::memory_order_relaxed)) ++retries;
    }
    return retries;
  });
}

#if defined(__x86_64__)
std::uint64_t exchange_four(float* target, const float* delta) noexcept {
  auto* words = reinterpret_cast<std::uint64_t*>(target);
  std::uint64_t expected[2] = {__atomic_load_n(words, __ATOMIC_RELAXED), __atomic_load_n(words + 1, __ATOMIC_RELAXED)};
  std::uint64_t desired[2], retries = 0;
  for (;; ++retries) {
    float values[4];
    std::memcpy(values, expected, 16);
    for (int i = 0; i < 4; ++i) values[i] += delta[i];
    std::memcpy(desired, values, 16);
    bool done;
    asm volatile("lock cmpxchg16b %1"
                 : "=@ccz"(done), "+m"(*reinterpret_cast<char(*)[16]>(target)), "+a"(expected[0]), "+d"(expected[1])
                 : "b"(desired[0]), "c"(desired[1])
                 : "memory");
    if (done) return retries;
  }
}
#endif

std::uint64_t exchange16(RivalVector& vector, const float* delta, std::uint64_t start) {
  return in_two_parts(vector, delta, start, [](float* target, const float* from, std::uint64_t count) {
    std::uint64_t i = 0, retries = 0;
#if defined(__x86_64__)
    for (; i + 4 <= count; i += 4) retries += exchange_four(target + i, from + i);
#endif
    for (; i < count; ++i) retries += exchange_add(target[i], from[i]);
    return retries;
  });
}

std::uint64_t vector_lock(RivalVector& vector, const float* delta, std::uint64_t) {
  const std::uint64_t waited = vector.lock(0).lock();
  simd_add(vector.values(), delta, vector.size());
  vector.lock(0).unlock();
  return waited;
}

std::uint64_t block_lock(RivalVector& vector, const float* delta, std::uint64_t start) {
  const std::uint64_t blocks = vector.blocks();
  std::uint64_t waited = 0, block = start / RivalVector::kBlock;
  for (std::uint64_t done = 0; done < blocks; ++done, block = block + 1 == blocks ? 0 : block + 1) {
    const std::uint64_t begin = block * RivalVector::kBlock;
    waited += vector.lock(block).lock();
    simd_add(vector.values() + begin, delta + begin, std::min(RivalVector::kBlock, vector.size() - begin));
    vector.lock(block).unlock();
  }
  return waited;
}

}  // namespace

bool SpinLock::lock() noexcept {
  if (held.exchange(1, std::memory_order_acquire) == 0) return false;
  constexpr int kSpins = 2000;  // about 100 us: longer than any of the rivals holds a block
  for (int spin = 0;; ++spin) {
    if (held.load(std::memory_order_relaxed) == 0 && held.exchange(1, std::memory_order_acquire) == 0) return true;
    if (spin < kSpins)
      spin_pause();
    else
      sched_yield();
  }
}

RivalVector::RivalVector(std::uint64_t floats)
    : size_(floats), values_(floats * sizeof(float)), locks_(blocks() * sizeof(SpinLock)) {}

double RivalVector::lost(std::uint64_t adds) const noexcept {
  double sum = 0;
  for (std::uint64_t i = 0; i < size_; ++i) sum += values()[i];
  const double all = double(size_) * double(adds);
  return (all - sum) / all;
}

const std::vector<Rival>& rivals() {
  static const std::vector<Rival> all = {{"racy_simd", racy_simd, false},
                                         {"atomic_ref", atomic_ref, true},
                                         {"exchange16", exchange16, true},
                                         {"vector_lock", vector_lock, true},
                                         {"block_lock", block_lock, true}};
  return all;
}

const Rival& rival(const std::string& name) {
  for (const Rival& one : rivals())
    if (one.name == name) return one;
  throw std::runtime_error("there is no rival " + name);
}

std::uint64_t start_of(const RivalVector& vector, int number, int processes) noexcept {
  constexpr std::uint64_t kLine = 16;  // floats
  return vector.size() * std::uint64_t(number) / std::uint64_t(processes) / kLine * kLine;
}

void locked_copy(const RivalVector& vector, float* out) noexcept {
  for (std::uint64_t block = 0; block < vector.blocks(); ++block) {
    const std::uint64_t begin = block * RivalVector::kBlock,
                        count = std::min(RivalVector::kBlock, vector.size() - begin);
    vector.lock(block).lock();
    std::memcpy(out + begin, vector.values() + begin, count * sizeof(float));
    vector.lock(block).unlock();
  }
}

PS_SHM_SIMD_CLONES void simd_add(float* target, const float* delta, std::uint64_t count) noexcept {
  PS_SHM_SIMD_LOOP
  for (std::uint64_t i = 0; i < count; ++i) target[i] += delta[i];
}

std::uint64_t exchange_add(float& target, float delta) noexcept {
  const std::atomic_ref<float> element(target);
  std::uint64_t retries = 0;
  float seen = element.load(std::memory_order_relaxed);
  while (!element.compare_exchange_weak(seen, seen + delta, std::memory_order_relaxed)) ++retries;
  return retries;
}

}  // namespace ps_shm::bench
