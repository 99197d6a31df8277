// A hash of 64 bits.
#pragma once

#include <cstdint>

namespace ps_shm::update {

// A hash that is a bijection, of Pelle Evensen's rrmxmx family.
constexpr std::uint64_t mixed(std::uint64_t key) noexcept {
  for (int i = 0; i < 2; ++i) key = (key ^ key >> 32) * 0xd6e8feb86659fd93;
  return key ^ key >> 32;
}

}  // namespace ps_shm::update
