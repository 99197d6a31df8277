// Norms of gradients, for clipping by global norm.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "update/rules.hpp"
#include "update/simd.hpp"

namespace ps_shm::update {
namespace {

// Sixteen sums side by side, whatever the processor's vector width. The last block is padded with zeros.
PS_SHM_SIMD_CLONES double sum_of_squares(const float* values, std::size_t count) noexcept {
  using Floats [[gnu::vector_size(32)]] = float;
  using Doubles [[gnu::vector_size(64)]] = double;
  constexpr std::size_t kLanes = 8, kBlock = 2 * kLanes;
  Doubles even = {}, odd = {};
  for (std::size_t i = 0; i < count; i += kBlock) {
    Floats first = {}, second = {};
    if (i + kBlock <= count) {
      std::memcpy(&first, values + i, sizeof first);
      std::memcpy(&second, values + i + kLanes, sizeof second);
    } else {
      float rest[kBlock] = {};
      std::copy(values + i, values + count, rest);
      std::memcpy(&first, rest, sizeof first);
      std::memcpy(&second, rest + kLanes, sizeof second);
    }
    const Doubles a = __builtin_convertvector(first, Doubles), b = __builtin_convertvector(second, Doubles);
    even += a * a;
    odd += b * b;
  }
  double sum = 0;
  for (std::size_t k = 0; k < kLanes; ++k) sum += even[k] + odd[k];
  return sum;
}

}  // namespace

double squared_norm(const float* values, std::size_t count) noexcept { return sum_of_squares(values, count); }

float clip_scale(double squared_norm, float clip_norm) noexcept {
  if (clip_norm <= 0) return 1.0F;
  return static_cast<float>(double(clip_norm) / std::max(std::sqrt(squared_norm), double(clip_norm)));
}

}  // namespace ps_shm::update
