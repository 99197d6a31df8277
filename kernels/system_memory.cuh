// Accesses of system scope, which includes CPUs and other GPUs, by inline PTX (PTX ISA, memory consistency model).
//
// Naturally aligned loads and stores of up to 16 bytes of host memory that is mapped into the device are single
// accesses, never torn (CUDA programming guide, C++ memory model, atomicity). A relaxed load of system scope reads the
// memory itself, not a cache that may be stale. Read-modify-writes have no such guarantee unless the link has native
// atomics. Acquire and release here pair with the C++ atomics of src/shm.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ps_shm::kernels {

// The pointer must be to global memory, as all mapped and all device memory is.
template <class T>
__device__ inline std::size_t global_address(T* pointer) {
  return __cvta_generic_to_global(pointer);
}

__device__ inline float load_relaxed_system(const float* from) {
  float value;
  asm volatile("ld.relaxed.sys.global.f32 %0, [%1];" : "=f"(value) : "l"(global_address(from)) : "memory");
  return value;
}

__device__ inline float4 load_relaxed_system(const float4* from) {
  float4 value;
  asm volatile("ld.relaxed.sys.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(global_address(from))
               : "memory");
  return value;
}

__device__ inline std::uint64_t load_relaxed_system(const std::uint64_t* from) {
  unsigned long long value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(global_address(from)) : "memory");
  return value;
}

__device__ inline std::uint32_t load_relaxed_system(const std::uint32_t* from) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(global_address(from)) : "memory");
  return value;
}

// Two accesses of 8 bytes.
__device__ inline ulonglong2 load_relaxed_system(const ulonglong2* from) {
  ulonglong2 value;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(value.x), "=l"(value.y)
               : "l"(global_address(from))
               : "memory");
  return value;
}

__device__ inline std::uint64_t load_acquire_system(const std::uint64_t* from) {
  unsigned long long value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(global_address(from)) : "memory");
  return value;
}

__device__ inline void store_relaxed_system(std::uint64_t* to, std::uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;"
               :
               : "l"(global_address(to)), "l"(static_cast<unsigned long long>(value))
               : "memory");
}

__device__ inline void store_release_system(std::uint64_t* to, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;"
               :
               : "l"(global_address(to)), "l"(static_cast<unsigned long long>(value))
               : "memory");
}

__device__ inline void store_release_system(std::uint32_t* to, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(global_address(to)), "r"(value) : "memory");
}

// Flushes subnormals to zero, as the hardware unit for these adds does.
__device__ inline void add_relaxed_system(float* to, float value) {
  asm volatile("red.relaxed.sys.global.add.f32 [%0], %1;" : : "l"(global_address(to)), "f"(value) : "memory");
}

// Acquire and release at system scope. __threadfence_system() is sequentially consistent, for which a GPU waits longer.
__device__ inline void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// An ordinary store of sixteen bytes in one request. The compiler splits an assignment of what an inline load has
// returned into four.
__device__ inline void store_vector(float4* to, float4 value) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(global_address(to)), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

#if __CUDA_ARCH__ >= 900
// Four adds in one request, each of which is atomic.
__device__ inline void add_relaxed_system(float4* to, float4 value) {
  asm volatile("red.relaxed.sys.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(global_address(to)), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}
#endif

}  // namespace ps_shm::kernels
