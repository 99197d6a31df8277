// bfloat16, the upper half of a float32: rounding to it.
#pragma once

#include <cstdint>

#include "launch.cuh"

namespace ps_shm::kernels {

// To the nearest, ties to even. Too large values become infinity, NaN stays NaN (and quiet), subnormals are kept.
__device__ inline std::uint32_t round_to_bfloat16(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return bits >> 16 | 0x40U;  // rounding would carry it into infinity
  return (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
}

__device__ inline std::uint32_t round_two_to_bfloat16(float low, float high) {
  return round_to_bfloat16(low) | round_to_bfloat16(high) << 16;
}

// For threads `first`, first + stride and so on of those that share the work.
__device__ inline void copy_to_bfloat16(const float* from, std::uint16_t* to, std::size_t count, std::size_t first,
                                        std::size_t stride) {
  std::size_t begin = 0;  // first of the elements that are copied individually
  if (is_aligned(from, sizeof(float4)) && is_aligned(to, sizeof(uint4))) {
    // Four loads are in flight, also in an incomplete last round, before anything is stored.
    for (std::size_t i = first; i < count / 8; i += 2 * stride) {
      float4 loaded[4];
#pragma unroll
      for (unsigned k = 0; k < 4; ++k)
        if (i + k / 2 * stride < count / 8)
          loaded[k] = reinterpret_cast<const float4*>(from)[2 * (i + k / 2 * stride) + k % 2];
#pragma unroll
      for (unsigned k = 0; k < 2; ++k) {
        const float4 a = loaded[2 * k], b = loaded[2 * k + 1];
        if (i + k * stride < count / 8)
          reinterpret_cast<uint4*>(to)[i + k * stride] =
              make_uint4(round_two_to_bfloat16(a.x, a.y), round_two_to_bfloat16(a.z, a.w),
                         round_two_to_bfloat16(b.x, b.y), round_two_to_bfloat16(b.z, b.w));
      }
    }
    begin = count / 8 * 8;
  }
  for (std::size_t i = begin + first; i < count; i += stride)
    to[i] = static_cast<std::uint16_t>(round_to_bfloat16(from[i]));
}

}  // namespace ps_shm::kernels
