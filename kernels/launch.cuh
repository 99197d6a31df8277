// Helpers of the launchers: grid sizes, and a launch that returns its own error.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace ps_shm::kernels {

inline constexpr unsigned kThreads = 256;

// Enough to fill any GPU. Kernels stride by the grid, so the same blocks process the items beyond it.
inline constexpr std::size_t kMaxBlocks = 65535;  // also the limit of a grid's y and z

// The number of blocks for `count` items, with `per_block` items per block.
inline unsigned blocks_for(std::size_t count, std::size_t per_block) {
  const std::size_t blocks = count / per_block + (count % per_block != 0);
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

// Not <<<>>> followed by cudaGetLastError(), which would report, and clear, the error of an earlier call.
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// A kernel that load_all() finds. Each file defines one for each of its kernels, after the kernel.
struct Loadable {
  template <class... Parameters>
  explicit Loadable(void (*entry)(Parameters...)) : kernel(reinterpret_cast<const void*>(entry)), next(first) {
    first = this;
  }

  const void* kernel;
  const Loadable* next;
  static inline const Loadable* first = nullptr;
};

// For a loop over elements: this thread's first element, and the distance to its next one.
__device__ inline std::size_t first_element() { return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline std::size_t element_stride() { return std::size_t{gridDim.x} * blockDim.x; }

__device__ inline bool is_aligned(const void* address, std::size_t bytes) {
  return reinterpret_cast<std::size_t>(address) % bytes == 0;
}

// Clips to +-limit; NaN passes through, as in src/update.
__device__ inline float clip(float value, float limit) {
  value = value < -limit ? -limit : value;
  return value > limit ? limit : value;
}

// The limit for `clip` from a clip_value, of which 0 or less means none.
__device__ inline float limit_of(float clip_value) { return clip_value > 0 ? clip_value : __int_as_float(0x7f800000); }

}  // namespace ps_shm::kernels
