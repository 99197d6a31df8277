// Random numbers that are identical on all platforms: the standard fixes its generators but not its distributions.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <random>
#include <string_view>

namespace ps_shm::train {

// The finaliser of splitmix64: neighbouring inputs give unrelated outputs.
inline std::uint64_t mix(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

// A seed for a separate purpose. The order of the arguments matters, so (1, 2) and (2, 1) are unrelated.
inline std::uint64_t mix(std::uint64_t seed, std::uint64_t purpose) { return mix(mix(seed) ^ purpose); }

// FNV-1a, to derive a purpose from a name.
inline std::uint64_t hash_name(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3;
  return hash;
}

// Draws from 0..bound-1, each equally likely. Requires: bound > 0.
inline std::uint64_t draw_below(std::mt19937_64& generator, std::uint64_t bound) {
  // Draws above the largest multiple of the bound are rejected; at least half are kept, whatever the bound.
  const std::uint64_t limit = std::numeric_limits<std::uint64_t>::max() / bound * bound;
  for (;;) {
    const std::uint64_t drawn = generator();
    if (drawn < limit) return drawn % bound;
  }
}

// Draws from the normal distribution with mean 0 and deviation 1, cut at two deviations (by drawing again), as
// TensorFlow's truncated_normal does.
inline double draw_truncated_normal(std::mt19937_64& generator) {
  // 53 random bits, scaled to (0, 1]: the logarithm is finite.
  const auto unit = [&] { return (static_cast<double>(generator() >> 11) + 1.0) * 0x1.0p-53; };
  for (;;) {
    const double radius = std::sqrt(-2.0 * std::log(unit()));
    const double drawn = radius * std::cos(2.0 * std::numbers::pi * unit());
    if (std::abs(drawn) <= 2.0) return drawn;
  }
}

}  // namespace ps_shm::train
