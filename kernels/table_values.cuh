// How a row lies in registered memory, and the values of its elements. A table is a RowTable or a KeyTable. To be included
// behind system_memory.cuh, which the tests on the CPU replace.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ps_shm::kernels {

// The address of an offset in registered memory. Sixteen bytes at a multiple of sixteen are contiguous.
__device__ inline const void* address_of(const std::uint64_t* regions, std::uint64_t offset,
                                         std::uint32_t region_bits) {
  const std::uint64_t in_region = offset & ((std::uint64_t{1} << region_bits) - 1);
  return reinterpret_cast<const void*>(regions[offset >> region_bits] + in_region);
}

// As in src/update/rule_table.hpp, with the same roundings: none of these operations is contracted.
template <class Table>
__device__ inline float ftrl_value(float z, float n, const Table& table) {
  const float left = __fsub_rn(fabsf(z), table.l1);
  if (!(left > 0)) return left == left ? 0.0F : left;
  const float root = __fsqrt_rn(n);
  return __fdiv_rn(-copysignf(left, z),
                   __fadd_rn(__fmul_rn(__fadd_rn(table.beta, root), table.inverse_rate), table.l2));
}

template <class Table>
__device__ inline float ftrl_value(std::uint64_t pair, const Table& table) {
  return ftrl_value(__uint_as_float(static_cast<std::uint32_t>(pair)),
                    __uint_as_float(static_cast<std::uint32_t>(pair >> 32)), table);
}

// Reads sixteen bytes of a row, whose records have `kRecord` floats. Stores their values to at most `left` elements
// from `to` on.
template <unsigned kRecord, bool kIsFtrl, class Table>
__device__ inline void take_vector(const void* from, float* to, std::uint32_t left, bool is_whole, const Table& table) {
  if constexpr (kIsFtrl) {
    static_assert(kRecord == 2);
    const ulonglong2 pairs = load_relaxed_system(static_cast<const ulonglong2*>(from));
    to[0] = ftrl_value(pairs.x, table);
    if (left > 1) to[1] = ftrl_value(pairs.y, table);
  } else {
    const float4 loaded = load_relaxed_system(static_cast<const float4*>(from));
    if constexpr (kRecord == 4) {
      to[0] = loaded.x;
    } else if constexpr (kRecord == 2) {
      to[0] = loaded.x;
      if (left > 1) to[1] = loaded.z;
    } else if (is_whole) {
      store_vector(reinterpret_cast<float4*>(to), loaded);
    } else {
      to[0] = loaded.x;
      if (left > 1) to[1] = loaded.y;
      if (left > 2) to[2] = loaded.z;
      if (left > 3) to[3] = loaded.w;
    }
  }
}

}  // namespace ps_shm::kernels
