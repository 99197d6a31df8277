// Bulk copies between global and shared memory, by inline PTX, for sm_90 and later (PTX ISA, cp.async.bulk). One thread
// starts them and goes on, while the multiprocessor copies without registers or further threads.
//
// A load adds its bytes to an Arrival, a barrier in shared memory (mbarrier), whose phase ends when as many have come as
// were announced. Stores are waited for in the order in which they were started. All addresses and sizes are multiples
// of 16. A block must not end while its copies are under way, because its shared memory becomes another block's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "system_memory.cuh"

namespace ps_shm::kernels {

using Arrival = std::uint64_t;

#if __CUDA_ARCH__ >= 900

// A copy that takes longer than this, of a few KiB, never ends.
constexpr std::uint64_t kMostWaitNanoseconds = 4'000'000'000;

// The shared memory that the launch has asked for.
__device__ inline std::byte* dynamic_shared() {
  extern __shared__ __align__(128) std::byte shared[];
  return shared;
}

template <class T>
__device__ inline std::uint32_t shared_address(T* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// One thread announces each phase's bytes. fence_arrivals() comes between these and the first load.
__device__ inline void initialize(Arrival* arrival) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" : : "r"(shared_address(arrival)) : "memory");
}
__device__ inline void fence_arrivals() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Announces the bytes of the arrival's phase, and begins to load them.
__device__ inline void bulk_load(std::byte* to_shared, const std::byte* from_global, std::uint32_t bytes,
                                 Arrival* arrival) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(shared_address(arrival)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :
               : "r"(shared_address(to_shared)), "l"(global_address(from_global)), "r"(bytes),
                 "r"(shared_address(arrival))
               : "memory");
}

// Begins a store, which the waits below count.
__device__ inline void bulk_store(std::byte* to_global, const std::byte* from_shared, std::uint32_t bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n\t"
      "cp.async.bulk.commit_group;"
      :
      : "l"(global_address(to_global)), "r"(shared_address(from_shared)), "r"(bytes)
      : "memory");
}

// Whether the phase of this parity (0 for the first, then 1, 0, 1 ...) has ended. May wait a while by itself.
__device__ inline bool try_wait(Arrival* arrival, std::uint32_t parity) {
  std::uint32_t has_ended;
  asm volatile(
      "{\n\t"
      ".reg .pred ended;\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n\t"
      "selp.u32 %0, 1, 0, ended;\n\t"
      "}"
      : "=r"(has_ended)
      : "r"(shared_address(arrival)), "r"(parity)
      : "memory");
  return has_ended != 0;
}

__device__ inline std::uint64_t now_nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Waits until the phase has ended; if it does not, ends the kernel with an error. The clock goes on while the GPU runs
// another process, so the arrival is looked at once more after it.
__device__ inline void wait_for(Arrival* arrival, std::uint32_t parity) {
  if (try_wait(arrival, parity)) return;
  const std::uint64_t begin = now_nanoseconds();
  for (;;) {
    const bool is_late = now_nanoseconds() - begin > kMostWaitNanoseconds;
    if (try_wait(arrival, parity)) return;
    if (is_late) __trap();
  }
}

// Waits until the shared memory of all stores but the newest `kNewest` has been read.
template <int kNewest>
__device__ inline void wait_until_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(kNewest) : "memory");
}

// Waits until all stores are there.
__device__ inline void wait_until_stored() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

#endif

}  // namespace ps_shm::kernels
