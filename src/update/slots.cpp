// The settings of a variable's rule, and the initial values of its slots.
#include <algorithm>
#include <type_traits>

#include "update/bfloat16.hpp"
#include "update/rule_table.hpp"
#include "update/rules.hpp"

namespace ps_shm::update {
namespace {

// The slot of element i lies at out + i * stride.
void fill(const Slot& slot, const Settings& settings, float lr, const float* values, float* out,
          std::size_t stride, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i)
    out[i * stride] = slot.first != nullptr ? slot.first(settings, lr, values[i]) : 0.0F;
}

}  // namespace

Settings settings_of(const Optimizer& optimizer, UpdateRule rule, float regularize, DType dtype,
                     float lr_scale) noexcept {
  Settings settings{.rule = rule, .lr_scale = lr_scale, .dtype = dtype};
  const Traits& traits = traits_of(rule);
  if (traits.is_sum) return settings;
  for (const HyperParameter& one : traits.hyper_parameters)
    if (one.from != nullptr) settings.*one.to = optimizer.*one.from;
  settings.l1 *= regularize;
  settings.l2 = optimizer.l2 * regularize;
  if (!traits.regularizes_itself)
    settings.weight_decay = optimizer.weight_decay.value_or(traits.weight_decay) * regularize;
  settings.clip_value = optimizer.clip_value;
  settings.ema = optimizer.ema;
  return settings;
}

void initialise_slots(const Settings& settings, float lr, const float* values, float* slots,
                      std::size_t stride, std::size_t count) noexcept {
  if (settings.dtype == DType::kBFloat16) {
    Settings as_floats = settings;
    as_floats.dtype = DType::kFloat32;
    constexpr std::size_t kBlock = BFloat16Chunk::kBlock;
    float block[kBlock];
    for (std::size_t at = 0; at < count; at += kBlock) {
      const std::size_t n = std::min(kBlock, count - at);
      widen(block, reinterpret_cast<const BFloat16Bits*>(values) + at, n);
      initialise_slots(as_floats, lr, block, slots + at, stride, n);
    }
    return;
  }
  for (const Slot& slot : traits_of(settings.rule).slots_of(false)) {
    fill(slot, settings, lr, values, slots, 1, count);
    slots += stride;
  }
  if (slots_per_element(settings) > slots_per_element(settings.rule, false)) std::copy_n(values, count, slots);
}

void initialise_elements(const Settings& settings, float lr, const float* values, float* elements,
                         std::size_t count) noexcept {
  const Traits& traits = traits_of(settings.rule);
  const std::span<const Slot> slots = traits.slots_of(true);
  const std::size_t stride = 1 + slots.size();
  for (const Slot& slot : slots) fill(slot, settings, lr, values, ++elements, stride, count);
  elements -= slots.size();
  for (std::size_t i = 0; i < count; ++i)
    elements[i * stride] =
        traits.first_in_place != nullptr ? traits.first_in_place(settings, lr, values[i]) : values[i];
}

void initialise_elements(const Settings& settings, float lr, const float* values, BFloat16Bits* elements,
                         std::size_t count) noexcept {
  constexpr std::size_t kAtOnce = 64, kMostNumbers = 4;
  float block[kAtOnce * kMostNumbers];
  const std::size_t record = 1 + traits_of(settings.rule).slots_of(true).size();
  for (std::size_t at = 0; at < count; at += kAtOnce) {
    const std::size_t n = std::min(kAtOnce, count - at);
    initialise_elements(settings, lr, values + at, block, n);
    round_to_nearest(elements + at * record, block, n * record);
  }
}

namespace {

template <class Number>
void keep_values_of(const Settings& settings, float lr, const float* values, Number* elements, std::size_t count) {
  with_rule(settings.rule, [&](auto rule) {
    using Rule = decltype(rule);
    if constexpr (Rule::kTraits.reads_by_rate) {
      constexpr std::size_t kRecord = 1 + Rule::kTraits.slots_of(true).size();
      for (std::size_t i = 0; i < count; ++i, elements += kRecord) {
        if constexpr (std::is_same_v<Number, float>) {
          Rule::set_element(settings, lr, elements, values[i]);
        } else {
          float numbers[kRecord];
          widen(numbers, elements, kRecord);
          if (rounded_to_nearest(Rule::value_of(settings, lr)(numbers)) == rounded_to_nearest(values[i])) continue;
          Rule::set_element(settings, lr, numbers, values[i]);
          round_to_nearest(elements, numbers, kRecord);
        }
      }
    }
  });
}

}  // namespace

void keep_values(const Settings& settings, float lr, const float* values, float* elements, std::size_t count) noexcept {
  keep_values_of(settings, lr, values, elements, count);
}

void keep_values(const Settings& settings, float lr, const float* values, BFloat16Bits* elements,
                 std::size_t count) noexcept {
  keep_values_of(settings, lr, values, elements, count);
}

float first_row_state(const Settings& settings, float lr) noexcept {
  const Slot& slot = traits_of(settings.rule).row_slot;
  return slot.first != nullptr ? slot.first(settings, lr, 0.0F) : 0.0F;
}

}  // namespace ps_shm::update
