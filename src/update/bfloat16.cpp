#include "update/bfloat16.hpp"

#include "update/dtypes.hpp"
#include "update/simd.hpp"

namespace ps_shm::update {
namespace {

PS_SHM_SIMD_CLONES void widen_all(float* out, const BFloat16Bits* in, std::size_t count) noexcept {
  PS_SHM_SIMD_LOOP
  for (std::size_t i = 0; i < count; ++i) out[i] = BFloat16{in[i]};
}

PS_SHM_SIMD_CLONES void round_all_to_nearest(BFloat16Bits* out, const float* in, std::size_t count) noexcept {
  PS_SHM_SIMD_LOOP
  for (std::size_t i = 0; i < count; ++i) out[i] = rounded_to_nearest(in[i]);
}

PS_SHM_SIMD_CLONES void round_all(BFloat16Bits* out, const float* in, std::size_t count, std::uint64_t key,
                                  std::uint32_t first) noexcept {
  PS_SHM_SIMD_LOOP
  for (std::size_t i = 0; i < count; ++i)
    out[i] = round_by(in[i], rounding_bits(key, first + static_cast<std::uint32_t>(i)));
}

}  // namespace

void widen(float* out, const BFloat16Bits* in, std::size_t count) noexcept { widen_all(out, in, count); }

// Ascending: a block is written where values were that have been converted already.
void widen_in_place(float* out, std::size_t count) noexcept {
  constexpr std::size_t kBlock = 1024;
  const auto* const in = reinterpret_cast<const BFloat16Bits*>(out + (count - (count + 1) / 2));
  BFloat16Bits block[kBlock];
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t n = std::min(kBlock, count - at);
    std::copy_n(in + at, n, block);
    widen(out + at, block, n);
  }
}

void round_to_nearest(BFloat16Bits* out, const float* in, std::size_t count) noexcept {
  round_all_to_nearest(out, in, count);
}

// The upper half of a number of 64 bits changes the key, so that elements 2^32 apart have other bits.
void round_stochastically(BFloat16Bits* out, const float* in, std::size_t count, std::uint64_t key,
                          std::uint64_t first) noexcept {
  round_all(out, in, count, key ^ mixed(first >> 32), static_cast<std::uint32_t>(first));
}

}  // namespace ps_shm::update
