#include "bridge/passes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>

#include "ps_shm/errors.hpp"
#include "update/bfloat16.hpp"
#include "update/simd.hpp"

namespace ps_shm::bridge {
namespace {

constexpr std::size_t kBlock = shm::kBridgeBlock;
using Block = std::array<float, kBlock>;

// Whether one is infinite or NaN.
PS_SHM_SIMD_CLONES bool has_only_finite(const float* of) noexcept {
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < kBlock; ++i) most = std::max(most, std::bit_cast<std::uint32_t>(of[i]) & 0x7fffffffU);
  return most < 0x7f800000U;
}

PS_SHM_SIMD_CLONES bool subtract_all(float* to, const float* from, const float* what, std::size_t count) noexcept {
  std::uint32_t any = 0;
  PS_SHM_SIMD_LOOP
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = from[i] - what[i];
    any |= std::bit_cast<std::uint32_t>(to[i]) & 0x7fffffffU;  // -0 is no difference
  }
  return any != 0;
}

PS_SHM_SIMD_CLONES void add_all(float* to, const float* a, const float* b) noexcept {
  PS_SHM_SIMD_LOOP
  for (std::size_t i = 0; i < kBlock; ++i) to[i] = a[i] + b[i];
}

PS_SHM_SIMD_CLONES float to_bytes(std::int8_t* to, const float* from, std::size_t count) noexcept {
  std::uint32_t most = 0;  // magnitudes are in the order of their bits
  for (std::size_t i = 0; i < count; ++i) most = std::max(most, std::bit_cast<std::uint32_t>(from[i]) & 0x7fffffffU);
  const float scale = std::bit_cast<float>(most) / 127.0F;
  if (!(scale > 0.0F)) {  // all 0, or too small to be divided by
    std::memset(to, 0, count);
    return 0.0F;
  }
  PS_SHM_SIMD_LOOP
  for (std::size_t i = 0; i < count; ++i) {
    const float scaled = from[i] / scale;
    to[i] = static_cast<std::int8_t>(static_cast<std::int32_t>(scaled + (scaled < 0.0F ? -0.5F : 0.5F)));
  }
  return scale;
}

PS_SHM_SIMD_CLONES void from_bytes(float* to, const std::int8_t* from, float scale, std::size_t count) noexcept {
  PS_SHM_SIMD_LOOP
  for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]) * scale;
}

PS_SHM_SIMD_CLONES void add_weighted(float* total, float* weights, const float* what, float weight) noexcept {
  PS_SHM_SIMD_LOOP
  for (std::size_t i = 0; i < kBlock; ++i) {
    total[i] += what[i] * weight;
    weights[i] += what[i] != 0.0F ? weight : 0.0F;
  }
}

PS_SHM_SIMD_CLONES void divide_by(float* total, const float* weights) noexcept {
  PS_SHM_SIMD_LOOP
  for (std::size_t i = 0; i < kBlock; ++i) total[i] /= weights[i] > 0.0F ? weights[i] : 1.0F;
}

PS_SHM_SIMD_CLONES void divide_by(float* total, float weight) noexcept {
  PS_SHM_SIMD_LOOP
  for (std::size_t i = 0; i < kBlock; ++i) total[i] /= weight;
}

PS_SHM_SIMD_CLONES void add_scaled(float* anchor, const float* mean, float rate, std::size_t count) noexcept {
  PS_SHM_SIMD_LOOP
  for (std::size_t i = 0; i < count; ++i) anchor[i] += rate * mean[i];
}

PS_SHM_SIMD_CLONES void add_momentum(float* anchor, float* momentum, const float* mean, float rate, float factor,
                                     std::size_t count) noexcept {
  PS_SHM_SIMD_LOOP
  for (std::size_t i = 0; i < count; ++i) {
    momentum[i] = factor * momentum[i] - mean[i];
    anchor[i] -= rate * momentum[i];
  }
}

PS_SHM_SIMD_CLONES void add_nesterov(float* anchor, float* momentum, const float* mean, float rate, float factor,
                                     std::size_t count) noexcept {
  PS_SHM_SIMD_LOOP
  for (std::size_t i = 0; i < count; ++i) {
    momentum[i] = factor * momentum[i] - mean[i];
    anchor[i] -= rate * (factor * momentum[i] - mean[i]);
  }
}

// In lanes, so that no addition waits for the one before.
PS_SHM_SIMD_CLONES double squares_of(const float* of) noexcept {
  constexpr std::size_t kLanes = 16;
  double sums[kLanes] = {};
  for (std::size_t i = 0; i < kBlock; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += double{of[i + lane]} * of[i + lane];
  return std::accumulate(std::begin(sums), std::end(sums), 0.0);
}

void encode_floats(Wire wire, const float* from, std::size_t count, std::byte* to) noexcept {
  switch (wire) {
    case Wire::kFloat32:
      std::memcpy(to, from, count * sizeof(float));
      break;
    case Wire::kBFloat16:
      update::round_to_nearest(reinterpret_cast<update::BFloat16Bits*>(to), from, count);
      break;
    case Wire::kInt8: {
      const float scale = to_bytes(reinterpret_cast<std::int8_t*>(to), from, count);
      std::memcpy(to + count, &scale, sizeof scale);
      break;
    }
  }
}

void decode_floats(Wire wire, const std::byte* from, std::size_t count, float* to) noexcept {
  switch (wire) {
    case Wire::kFloat32:
      std::memcpy(to, from, count * sizeof(float));
      break;
    case Wire::kBFloat16:
      update::widen(to, reinterpret_cast<const update::BFloat16Bits*>(from), count);
      break;
    case Wire::kInt8: {
      float scale;
      std::memcpy(&scale, from + count, sizeof scale);
      from_bytes(to, reinterpret_cast<const std::int8_t*>(from), scale, count);
      break;
    }
  }
}

void encode_block(Wire wire, const float* from, std::byte* to) noexcept { encode_floats(wire, from, kBlock, to); }
void decode_block(Wire wire, const std::byte* from, float* to) noexcept { decode_floats(wire, from, kBlock, to); }

}  // namespace

Wire wire_of(std::string_view name) {
  if (name == "float32") return Wire::kFloat32;
  if (name == "bfloat16") return Wire::kBFloat16;
  if (name == "int8") return Wire::kInt8;
  throw Error(fmt::format("wire '{}': it is one of float32, bfloat16 and int8", name));
}

std::size_t row_bytes(Wire wire, std::size_t row_size) noexcept {
  return wire == Wire::kFloat32 ? row_size * 4 : wire == Wire::kBFloat16 ? row_size * 2 : row_size + sizeof(float);
}

std::size_t block_bytes(Wire wire) noexcept { return row_bytes(wire, kBlock); }

void encode_rows(Wire wire, std::size_t row_size, std::span<const float> rows, std::span<std::byte> to) noexcept {
  for (std::size_t k = 0; k < rows.size() / row_size; ++k)
    encode_floats(wire, rows.data() + k * row_size, row_size, to.data() + k * row_bytes(wire, row_size));
}

void decode_rows(Wire wire, std::size_t row_size, std::span<const std::byte> from, std::span<float> to) noexcept {
  for (std::size_t k = 0; k < to.size() / row_size; ++k)
    decode_floats(wire, from.data() + k * row_bytes(wire, row_size), row_size, to.data() + k * row_size);
}

OuterRule outer_rule_of(std::string_view name) {
  if (name == "add") return OuterRule::kAdd;
  if (name == "momentum") return OuterRule::kMomentum;
  if (name == "nesterov") return OuterRule::kNesterov;
  throw Error(fmt::format("outer rule '{}': it is one of add, momentum and nesterov", name));
}

bool cut(Wire wire, std::span<const float> values, std::span<const float> from, std::span<float> base,
         std::span<std::byte> encoded, std::span<std::uint8_t> present) noexcept {
  const std::size_t bytes = block_bytes(wire);
  Block difference, decoded;
  bool is_finite = true;
  for (std::size_t k = 0; k < present.size(); ++k) {
    const std::size_t begin = k * kBlock, count = std::min(kBlock, values.size() - std::min(values.size(), begin));
    std::fill(difference.begin() + static_cast<std::ptrdiff_t>(count), difference.end(), 0.0F);
    present[k] = subtract_all(difference.data(), values.data() + begin, from.data() + begin, count);
    is_finite &= has_only_finite(difference.data());
    encode_block(wire, difference.data(), encoded.data() + k * bytes);
    if (base.empty()) continue;
    decode_block(wire, encoded.data() + k * bytes, decoded.data());
    add_all(base.data() + begin, from.data() + begin, decoded.data());
  }
  return is_finite;
}

bool sum(Wire wire, std::span<const Part> parts, bool is_mean, std::span<const std::uint8_t> sparse,
         std::span<float> residual, std::span<std::byte> encoded) noexcept {
  const std::size_t bytes = block_bytes(wire);
  const float all = std::accumulate(parts.begin(), parts.end(), 0.0F,
                                    [](float before, const Part& part) { return before + part.weight; });
  Block total, decoded, weights;
  bool is_finite = true;
  for (std::size_t k = 0; k < sparse.size(); ++k) {
    total.fill(0.0F);
    weights.fill(0.0F);
    for (const Part& part : parts) {
      if (part.weight == 0.0F) continue;
      decode_block(wire, part.encoded.data() + k * bytes, decoded.data());
      add_weighted(total.data(), weights.data(), decoded.data(), part.weight);
    }
    if (is_mean && sparse[k] != 0) divide_by(total.data(), weights.data());
    if (is_mean && sparse[k] == 0 && all > 0.0F) divide_by(total.data(), all);
    if (!residual.empty()) add_all(total.data(), total.data(), residual.data() + k * kBlock);
    is_finite &= has_only_finite(total.data());
    encode_block(wire, total.data(), encoded.data() + k * bytes);
    if (residual.empty()) continue;
    decode_block(wire, encoded.data() + k * bytes, decoded.data());
    subtract_all(residual.data() + k * kBlock, total.data(), decoded.data(), kBlock);
  }
  return is_finite;
}

void decode(Wire wire, std::span<const std::byte> encoded, std::span<float> to) noexcept {
  for (std::size_t k = 0; k < to.size() / kBlock; ++k)
    decode_block(wire, encoded.data() + k * block_bytes(wire), to.data() + k * kBlock);
}

void step(OuterRule rule, float rate, float momentum_factor, std::span<const float> mean, std::span<float> anchor,
          std::span<float> momentum) noexcept {
  switch (rule) {
    case OuterRule::kAdd:
      return add_scaled(anchor.data(), mean.data(), rate, anchor.size());
    case OuterRule::kMomentum:
      return add_momentum(anchor.data(), momentum.data(), mean.data(), rate, momentum_factor, anchor.size());
    case OuterRule::kNesterov:
      return add_nesterov(anchor.data(), momentum.data(), mean.data(), rate, momentum_factor, anchor.size());
  }
}

double sum_of_squares(std::span<const float> of) noexcept {
  double sum = 0;
  for (std::size_t begin = 0; begin < of.size(); begin += kBlock) sum += squares_of(of.data() + begin);
  return sum;
}

bool subtract(std::span<const float> anchor, std::span<const float> base, std::span<float> to) noexcept {
  return subtract_all(to.data(), anchor.data(), base.data(), to.size());
}

}  // namespace ps_shm::bridge
