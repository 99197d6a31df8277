// bfloat16, the upper half of a float32: conversions, and updates of chunks that store their values in it.
//
// An update converts values to float32, computes with them, and rounds the results stochastically: up or down with the
// probabilities that make the expected result exact. A change that is smaller than the distance to the next bfloat16
// is therefore not lost, but made once in so many updates. The random bits are a hash of the variable's seed, the
// number of the chunk's update and the element, so that every worker that computes an update rounds alike, however a
// variable is divided (slot.V8; sync mode relies on that).
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "update/hash.hpp"

namespace ps_shm::update {

// The bits of a bfloat16. They lie in memory that is otherwise handled as floats.
using BFloat16Bits [[gnu::may_alias]] = std::uint16_t;

// The seed of a variable's rounding in a job with that seed.
constexpr std::uint64_t rounding_seed(std::uint64_t seed, std::string_view variable) noexcept {
  std::uint64_t hash = mixed(seed + 1);
  for (const char letter : variable) hash = mixed(hash ^ static_cast<unsigned char>(letter));
  return hash;
}

// What the random bits of one update of a chunk depend on, together with the element. `updates`: the number of earlier
// updates that the chunk's state contains.
constexpr std::uint64_t rounding_key(std::uint64_t seed, std::uint64_t updates) noexcept {
  return mixed(seed ^ mixed(updates + 1));
}

// The 16 random bits of an element, of 32 that are a bijection of the element's number: over 2^32 consecutive elements
// each value occurs equally often. Multiplications of 32 bits, which processors do in vectors.
[[gnu::always_inline]] constexpr std::uint32_t rounding_bits(std::uint64_t key, std::uint32_t element) noexcept {
  std::uint32_t bits = element ^ static_cast<std::uint32_t>(key);
  bits = (bits ^ bits >> 16) * 0x7feb352d;
  bits = (bits ^ bits >> 15) + static_cast<std::uint32_t>(key >> 32);
  bits = (bits ^ bits >> 16) * 0x846ca68b;
  return (bits ^ bits >> 16) >> 16;
}

// The value rounded up, away from zero, by `random` of 65536 equally likely numbers as often as its distance from the
// next bfloat16 towards zero demands: the lower half of its bits are that distance, in 65536ths of the distance between
// the two. What is a bfloat16 stays as it is, and NaN stays NaN. From the largest bfloat16 on it may be infinity.
[[gnu::always_inline]] constexpr std::uint16_t round_by(float value, std::uint32_t random) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + random) >> 16, quiet_nan = bits >> 16 | 0x40;
  return static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
}

// Rounds to nearest, ties to even; NaN stays NaN.
[[gnu::always_inline]] constexpr std::uint16_t rounded_to_nearest(float value) noexcept {
  return round_by(value, 0x7fff + (std::bit_cast<std::uint32_t>(value) >> 16 & 1));
}

// Converts exactly.
void widen(float* out, const BFloat16Bits* in, std::size_t count) noexcept;

// The same for values at the end of `out`, in the last floats that they fit into.
void widen_in_place(float* out, std::size_t count) noexcept;

// rounded_to_nearest() of each.
void round_to_nearest(BFloat16Bits* out, const float* in, std::size_t count) noexcept;

// Rounds by the random bits of `count` elements, the first of which has that number.
void round_stochastically(BFloat16Bits* out, const float* in, std::size_t count, std::uint64_t key,
                          std::uint64_t first) noexcept;

// A chunk of bfloat16 values with float32 state. Slot k of element i lies at in + (k + 1) * stride - stride / 2 + i: the
// values take half of the space of a slot.
struct BFloat16Chunk {
  static constexpr std::size_t kBlock = 256, kMostSlots = 3;

  float* out;
  const float* in;
  std::size_t stride, slots;

  // Calls body(after, before, block, at, n) for blocks of the elements [begin, begin + count): `before` has values and
  // slots of n elements from `at` on, each array kBlock floats after the one before; body writes their new slots to
  // `after`, which is laid out likewise, and their new values to `block`. Requires: `begin` is even; `count` too, unless
  // it reaches the end of the chunk.
  template <class Body>
  void for_blocks(std::size_t begin, std::size_t count, Body&& body) const noexcept {
    float before[(1 + kMostSlots) * kBlock], after[(1 + kMostSlots) * kBlock];
    auto* const to = reinterpret_cast<BFloat16Bits*>(out);
    for (std::size_t at = begin, end = begin + count; at < end; at += kBlock) {
      const std::size_t n = std::min(kBlock, end - at);
      widen(before, reinterpret_cast<const BFloat16Bits*>(in) + at, n);
      for (std::size_t k = 1; k <= slots; ++k) std::copy_n(in + slot(k) + at, n, before + k * kBlock);
      body(after, static_cast<const float*>(before), to + at, at, n);
      for (std::size_t k = 1; k <= slots; ++k) std::copy_n(after + k * kBlock, n, out + slot(k) + at);
    }
    if ((begin + count) % 2 != 0) to[begin + count] = 0;  // the rest of the last float, which digests include
  }

 private:
  std::size_t slot(std::size_t k) const noexcept { return k * stride - stride / 2; }
};

}  // namespace ps_shm::update
