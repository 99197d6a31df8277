// Floats of 16 bits as float32, which has all of their values.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace ps::keep {

// IEEE 754-2019's binary16.
inline float from_float16(std::uint16_t bits) noexcept {
  const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  const float sign = bits >> 15 != 0 ? -1.0F : 1.0F;
  if (exponent == 0x1f)
    return sign * (fraction != 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity());
  return sign * (exponent == 0 ? std::ldexp(float(fraction), -24) : std::ldexp(float(fraction + 0x400), exponent - 25));
}

// The upper half of a float32.
inline float from_bfloat16(std::uint16_t bits) noexcept { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

}  // namespace ps::keep
