// bfloat16, the upper half of a float32: rounding to it, and the exact way back.
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

// The same the other way round.
__device__ inline void copy_from_bfloat16(const std::uint16_t* from, float* to, std::size_t count, std::size_t first,
                                          std::size_t stride) {
  std::size_t begin = 0;
  if (is_aligned(from, sizeof(uint4)) && is_aligned(to, sizeof(float4))) {
    const auto low = [](std::uint32_t two) { return __uint_as_float(two << 16); };
    const auto high = [](std::uint32_t two) { return __uint_as_float(two & 0xffff0000U); };
    for (std::size_t i = first; i < count / 8; i += stride) {
      const uint4 v = reinterpret_cast<const uint4*>(from)[i];
      reinterpret_cast<float4*>(to)[2 * i] = make_float4(low(v.x), high(v.x), low(v.y), high(v.y));
      reinterpret_cast<float4*>(to)[2 * i + 1] = make_float4(low(v.z), high(v.z), low(v.w), high(v.w));
    }
    begin = count / 8 * 8;
  }
  for (std::size_t i = begin + first; i < count; i += stride)
    to[i] = __uint_as_float(static_cast<std::uint32_t>(from[i]) << 16);
}

}  // namespace ps_shm::kernels
