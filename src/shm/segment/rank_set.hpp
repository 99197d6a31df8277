// A set of ranks, in a private copy.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "shm/segment/layout.hpp"

namespace ps_shm::shm {

struct RankSet {
  std::array<std::uint64_t, kMaxRanks / 64> bits{};
  void insert(std::uint32_t rank) noexcept { bits[rank / 64] |= std::uint64_t{1} << rank % 64; }
  bool contains(std::uint32_t rank) const noexcept { return (bits[rank / 64] >> rank % 64 & 1) != 0; }
  bool intersects(const RankSet& other) const noexcept {
    for (std::size_t i = 0; i < bits.size(); ++i)
      if ((bits[i] & other.bits[i]) != 0) return true;
    return false;
  }
  bool empty() const noexcept { return size() == 0; }
  std::uint32_t size() const noexcept {
    std::uint32_t count = 0;
    for (const std::uint64_t word : bits) count += static_cast<std::uint32_t>(std::popcount(word));
    return count;
  }
};

}  // namespace ps_shm::shm
