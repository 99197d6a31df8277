// Replaces kernels/system_memory.cuh: the same accesses by the compiler's atomics. Only bulk_copies.cuh has inline PTX,
// too.
//
// A vector is loaded member by member, with turns of other threads in between, because its members are not guaranteed
// to be loaded at the same moment.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "launch.cuh"

namespace ps_shm::kernels {

template <class T>
inline T load_single(const T* from, on_cpu::Access access = on_cpu::Access::kLoad) {
  on_cpu::note(access, from, sizeof(T));
  T value;
  __atomic_load(from, &value, access == on_cpu::Access::kLoad ? __ATOMIC_RELAXED : __ATOMIC_ACQUIRE);
  return value;
}

template <class T>
inline void store_single(T* to, T value, on_cpu::Access access) {
  on_cpu::note(access, to, sizeof(T));
  __atomic_store_n(to, value, access == on_cpu::Access::kStore ? __ATOMIC_RELAXED : __ATOMIC_RELEASE);
}

inline float load_relaxed_system(const float* from) { return load_single(from); }
inline std::uint64_t load_relaxed_system(const std::uint64_t* from) { return load_single(from); }
inline std::uint32_t load_relaxed_system(const std::uint32_t* from) { return load_single(from); }
inline float4 load_relaxed_system(const float4* from) {
  const auto* floats = reinterpret_cast<const float*>(on_cpu::whole(from, sizeof(float4)));
  return {load_single(floats), load_single(floats + 1), load_single(floats + 2), load_single(floats + 3)};
}
inline ulonglong2 load_relaxed_system(const ulonglong2* from) {
  const auto* words = reinterpret_cast<const unsigned long long*>(on_cpu::whole(from, sizeof(ulonglong2)));
  return {load_single(words), load_single(words + 1)};
}
inline std::uint64_t load_acquire_system(const std::uint64_t* from) {
  return load_single(from, on_cpu::Access::kLoadAcquire);
}
inline void store_relaxed_system(std::uint64_t* to, std::uint64_t value) {
  store_single(to, value, on_cpu::Access::kStore);
}
inline void store_release_system(std::uint64_t* to, std::uint64_t value) {
  store_single(to, value, on_cpu::Access::kStoreRelease);
}
inline void store_release_system(std::uint32_t* to, std::uint32_t value) {
  store_single(to, value, on_cpu::Access::kStoreRelease);
}

inline void fence_system() {
  on_cpu::note(on_cpu::Access::kFence, nullptr, 0);
  __atomic_thread_fence(__ATOMIC_ACQ_REL);
}
// By reference: passed by value, GCC takes what was loaded under the same condition for uninitialized.
inline void store_vector(float4* to, const float4& value) {
  *reinterpret_cast<float4*>(const_cast<void*>(on_cpu::whole(to, sizeof(float4)))) = value;
}

inline void add_relaxed_system(float* to, float value) {
  on_cpu::note(on_cpu::Access::kAdd, to, sizeof(float));
  auto* word = reinterpret_cast<std::uint32_t*>(to);
  std::uint32_t old = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(word, &old, std::bit_cast<std::uint32_t>(std::bit_cast<float>(old) + value),
                                      false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
inline void add_relaxed_system(float4* to, float4 value) {
  auto* floats = reinterpret_cast<float*>(const_cast<void*>(on_cpu::whole(to, sizeof(float4))));
  add_relaxed_system(floats, value.x);
  add_relaxed_system(floats + 1, value.y);
  add_relaxed_system(floats + 2, value.z);
  add_relaxed_system(floats + 3, value.w);
}

}  // namespace ps_shm::kernels
