// The values that a row of a table by key begins with: a function of (seed, key, element) alone.
#pragma once

#include <cstdint>

#include "update/hash.hpp"

namespace ps_shm {

// Calls body(element's index, its initial value), of float32. `seed` and `range` are TableSpec's.
template <class Body>
void for_initial_values(std::uint64_t seed, float range, std::uint64_t row_size, std::uint64_t key, Body&& body) {
  const std::uint64_t of_key = update::mixed(update::mixed(seed + 1) ^ key);
  for (std::uint64_t i = 0; i < row_size; ++i) {
    const auto bits = static_cast<std::uint32_t>(update::mixed(of_key + i) >> 40);  // as many as a float has
    body(i, (static_cast<float>(bits) / static_cast<float>(1 << 23) - 1.0F) * range);
  }
}

}  // namespace ps_shm
