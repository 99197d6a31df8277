// Changes of versioned chunks that bypass the optimizer: adds and assigns, and their effect on the state.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "update/bfloat16.hpp"
#include "update/dtypes.hpp"
#include "update/rule_table.hpp"
#include "update/simd.hpp"

namespace ps_shm::update {
namespace {

PS_SHM_SIMD_CLONES void add_values(float* out, const float* in, const float* delta, std::size_t count) noexcept {
  PS_SHM_SIMD_LOOP
  for (std::size_t i = 0; i < count; ++i) out[i] = in[i] + delta[i];
}

template <class T>
PS_SHM_SIMD_CLONES void add_as(float* out, const float* in, const float* delta, std::size_t bytes) noexcept {
  auto* to = reinterpret_cast<std::byte*>(out);
  const auto* from = reinterpret_cast<const std::byte*>(in);
  const auto* more = reinterpret_cast<const std::byte*>(delta);
  for (std::size_t at = 0; at < bytes; at += sizeof(T)) {
    T a, b;
    std::memcpy(&a, from + at, sizeof(T));
    std::memcpy(&b, more + at, sizeof(T));
    a = static_cast<T>(a + b);
    std::memcpy(to + at, &a, sizeof(T));
  }
}

void copy(float* out, const float* in, std::size_t count) noexcept {
  if (out != in) std::copy_n(in, count, out);
}

// For rules whose state depends on the value.
template <class Rule>
void set_values(const Settings& settings, bool adds, float lr, float* out, const float* in,
                std::size_t stride, const float* values, std::size_t count) noexcept {
  constexpr std::size_t kFloats = 1 + Rule::kTraits.slots_of(false).size();
  for (std::size_t i = 0; i < count; ++i) {
    float x[kFloats];
    for (std::size_t k = 0; k < kFloats; ++k) x[k] = in[i + k * stride];
    Rule::set_value(settings, lr, x, adds ? x[0] + values[i] : values[i]);
    for (std::size_t k = 0; k < kFloats; ++k) out[i + k * stride] = x[k];
  }
}

// The state changes as that of the same values in float32. Values are not rounded.
void assign_bfloat16(const Settings& settings, Change how, float lr, float* out, const float* in,
                     std::size_t stride, const float* values, std::size_t count) noexcept {
  Settings as_floats = settings;
  as_floats.dtype = DType::kFloat32;
  constexpr std::size_t kBlock = BFloat16Chunk::kBlock;
  float block_values[kBlock];
  BFloat16Chunk{out, in, stride, slots_per_element(settings)}.for_blocks(
      0, count, [&](float* after, const float* before, BFloat16Bits* block, std::size_t at, std::size_t n) {
        const auto* const given = reinterpret_cast<const BFloat16Bits*>(values) + at;
        widen(block_values, given, n);
        change(as_floats, how, lr, after, before, kBlock, block_values, n);
        std::copy_n(given, n, block);
      });
}

}  // namespace

void add_elements(DType dtype, float* out, const float* in, const float* delta, std::size_t count) noexcept {
  if (dtype == DType::kFloat32) return add_values(out, in, delta, count);
  with_element(dtype, [&]<class T>(T) {
    if constexpr (std::is_integral_v<T>)
      add_as<std::make_unsigned_t<T>>(out, in, delta, count * sizeof(float));  // unsigned, so that it wraps around
    else if constexpr (std::is_floating_point_v<T>)
      add_as<T>(out, in, delta, count * sizeof(float));
  });
}

void change(const Settings& settings, Change how, float lr, float* out, const float* in, std::size_t stride,
            const float* values, std::size_t count) noexcept {
  if (settings.dtype == DType::kBFloat16)
    return assign_bfloat16(settings, how, lr, out, in, stride, values, count);
  if (how == Change::kReset) {
    copy(out, values, count);
    return initialise_slots(settings, lr, values, out + stride, stride, count);
  }
  const bool adds = how == Change::kAdd;
  const std::size_t slots = slots_per_element(settings.rule, false), all = slots_per_element(settings);
  const bool is_done = with_rule(settings.rule, [&](auto rule) {
    using Rule = decltype(rule);
    if constexpr (requires { Rule::set_value(settings, 0.0F, out, 0.0F); }) {
      set_values<Rule>(settings, adds, lr, out, in, stride, values, count);
      return true;
    }
    return false;
  });
  if (!is_done) {
    if (adds)
      add_elements(settings.dtype, out, in, values, count);
    else
      copy(out, values, count);
    for (std::size_t k = 1; k <= slots; ++k) copy(out + k * stride, in + k * stride, count);
  }
  if (all > slots) copy(out + all * stride, adds ? in + all * stride : values, count);
}

}  // namespace ps_shm::update
