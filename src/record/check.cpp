#include "record/recording.hpp"

#include <xxhash.h>

namespace ps_shm::record {

std::uint32_t check_of(std::span<const float> numbers, std::uint32_t kind) noexcept {
  const XXH64_hash_t hash = XXH3_64bits_withSeed(numbers.data(), numbers.size_bytes(), kind);
  return static_cast<std::uint32_t>(hash ^ hash >> 32);
}

}  // namespace ps_shm::record
