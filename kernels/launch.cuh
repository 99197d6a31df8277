// How the launchers launch: grid sizes, and a launch that says itself whether it worked.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace ps::kernels {

inline constexpr unsigned kThreads = 256;

// Enough for any GPU to be full; kernels stride by the grid, so what is beyond it is done by the same blocks.
inline constexpr std::size_t kMaxBlocks = 65535;  // the limit of a grid's y and z, too

// How many blocks for `count` items at so many a block.
inline unsigned blocks_for(std::size_t count, std::size_t per_block) {
  const std::size_t blocks = count / per_block + (count % per_block != 0);
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

// Not <<<>>> with cudaGetLastError() behind it: that would report, and clear, an older call's error.
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// A kernel that load_all() finds: each file makes one for each of its kernels, behind it.
struct Loadable {
  template <class... Parameters>
  explicit Loadable(void (*entry)(Parameters...)) : kernel(reinterpret_cast<const void*>(entry)), next(first) {
    first = this;
  }

  const void* kernel;
  const Loadable* next;
  static inline const Loadable* first = nullptr;
};

// For a loop over elements: this thread's first one, and how far it is to its next.
__device__ inline std::size_t first_element() { return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline std::size_t element_stride() { return std::size_t{gridDim.x} * blockDim.x; }

__device__ inline bool is_aligned(const void* address, std::size_t bytes) {
  return reinterpret_cast<std::size_t>(address) % bytes == 0;
}

// To +-limit; NaN passes, as in src/update.
__device__ inline float clip(float value, float limit) {
  value = value < -limit ? -limit : value;
  return value > limit ? limit : value;
}

// What `clip` takes for a clip_value of which 0 or less means none.
__device__ inline float limit_of(float clip_value) { return clip_value > 0 ? clip_value : __int_as_float(0x7f800000); }

}  // namespace ps::kernels
