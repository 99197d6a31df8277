// Hashes of 64 bits, and the initial values of rows, which are made of them.
#pragma once

#include <cstdint>

namespace ps_shm::update {

// A hash that is a bijection, of Pelle Evensen's rrmxmx family.
constexpr std::uint64_t mixed(std::uint64_t key) noexcept {
  for (int i = 0; i < 2; ++i) key = (key ^ key >> 32) * 0xd6e8feb86659fd93;
  return key ^ key >> 32;
}

// The same with secret multipliers, for keys that somebody else may have chosen. It is a bijection, as the multipliers
// are odd. The upper b bits of the hashes of any two keys are equal with a probability of at most 2 / 2^b over the second
// multiplier (multiply-shift: Dietzfelbinger, Hagerup, Katajainen and Penttonen 1997), so nobody who does not know it can
// choose keys that meet.
struct KeyHash {
  std::uint64_t first = 1, second = 1;

  constexpr std::uint64_t operator()(std::uint64_t key) const noexcept {
    key = (key ^ key >> 32) * first;
    key = (key ^ key >> 32) * second;
    return key ^ key >> 32;
  }
  // Of two words that are secret, or that a seed gives.
  static constexpr KeyHash of(std::uint64_t one, std::uint64_t other) noexcept { return {one | 1, other | 1}; }
  static constexpr KeyHash of_seed(std::uint64_t seed) noexcept {
    const std::uint64_t one = mixed(mixed(seed) + 1);
    return of(one, mixed(one + 1));
  }
  constexpr bool is_bijection() const noexcept { return (first & second & 1) != 0; }
  bool operator==(const KeyHash&) const = default;
};

// The values that a row of a table by key begins with: a function of (seed, key, element) alone. Calls body(element's
// index, its initial value), of float32. `seed` and `range` are TableSpec's.
template <class Body>
void for_initial_values(std::uint64_t seed, float range, std::uint64_t row_size, std::uint64_t key, Body&& body) {
  const std::uint64_t of_key = mixed(mixed(seed + 1) ^ key);
  for (std::uint64_t i = 0; i < row_size; ++i) {
    const auto bits = static_cast<std::uint32_t>(mixed(of_key + i) >> 40);  // as many as a float has
    body(i, (static_cast<float>(bits) / static_cast<float>(1 << 23) - 1.0F) * range);
  }
}

}  // namespace ps_shm::update
