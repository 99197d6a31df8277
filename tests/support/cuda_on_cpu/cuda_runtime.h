// The device side of CUDA C++ for g++, to the extent that kernels/ uses it: each thread of a block is a fiber
// (grid.hpp).
//
// Not simulated: weak ordering (x86 orders more than a GPU does), the GPU's mathematical functions, and speed.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>

#include "cuda_runtime_api.h"
#include "grid.hpp"

#define __CUDA_ARCH__ 900
#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __shared__ static thread_local  // an OS thread runs one block at a time

struct float4 {
  float x, y, z, w;
} __attribute__((aligned(16)));
struct uint4 {
  unsigned x, y, z, w;
} __attribute__((aligned(16)));
struct ulonglong2 {
  unsigned long long x, y;
} __attribute__((aligned(16)));
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

using ps_shm::on_cpu::blockDim;
using ps_shm::on_cpu::blockIdx;
using ps_shm::on_cpu::gridDim;
using ps_shm::on_cpu::threadIdx;

// A barrier is identified by its line: threads that wait at different barriers are an error.
inline void __syncthreads(int line = __builtin_LINE()) { ps_shm::on_cpu::meet(line, false); }
inline int __syncthreads_or(int fact, int line = __builtin_LINE()) {
  return ps_shm::on_cpu::meet(line, fact != 0) ? 1 : 0;
}
inline float __shfl_xor_sync(unsigned mask, float value, unsigned apart, int line = __builtin_LINE()) {
  return std::bit_cast<float>(ps_shm::on_cpu::exchange(line, mask, std::bit_cast<std::uint32_t>(value), apart));
}

inline unsigned long long __brevll(unsigned long long bits) {
  bits = __builtin_bswap64(bits);
  bits = (bits & 0x0f0f0f0f0f0f0f0f) << 4 | (bits >> 4 & 0x0f0f0f0f0f0f0f0f);
  bits = (bits & 0x3333333333333333) << 2 | (bits >> 2 & 0x3333333333333333);
  return (bits & 0x5555555555555555) << 1 | (bits >> 1 & 0x5555555555555555);
}
inline int __clz(int bits) { return std::countl_zero(static_cast<unsigned>(bits)); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
using std::min;

// Loads the kernel.
struct cudaFuncAttributes {};
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* kernel) {
  ps_shm::on_cpu::load(kernel);
  return cudaSuccess;
}

// The device is like an H100.
inline constexpr int kSharedBytes = 48 << 10, kMostSharedBytes = 227 << 10;
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? __CUDA_ARCH__ / 100 : kMostSharedBytes;
  return cudaSuccess;
}

// How much dynamic shared memory a launch of the kernel may ask for.
template <class... Parameters>
std::atomic<int>& shared_bytes_of(void (*)(Parameters...)) {
  static std::atomic<int> most{kSharedBytes};  // of all kernels with these parameters, which is enough here
  return most;
}
template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute, int value) {
  if (value < 0 || value > kMostSharedBytes) return cudaErrorInvalidValue;
  shared_bytes_of(kernel) = value;
  return cudaSuccess;
}

// Rejects what CUDA rejects.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments... arguments) {
  if (config->dynamicSmemBytes > static_cast<std::size_t>(shared_bytes_of(kernel).load())) return cudaErrorInvalidValue;
  if (!ps_shm::on_cpu::may_launch(config->gridDim, config->blockDim)) return cudaErrorInvalidConfiguration;
  const std::tuple<Parameters...> kept{static_cast<Parameters>(arguments)...};
  return ps_shm::on_cpu::enqueue(
      config->stream,
      [grid = config->gridDim, block = config->blockDim, shared = config->dynamicSmemBytes, kernel, kept] {
        ps_shm::on_cpu::run_grid(grid, block, shared, [&] { std::apply(kernel, kept); });
      },
      reinterpret_cast<const void*>(kernel));
}
