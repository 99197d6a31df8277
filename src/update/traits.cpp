#include "update/traits.hpp"

#include "ps_shm/optimizer.hpp"
#include "update/rule_table.hpp"

namespace ps_shm {
namespace update {

std::span<const Traits> all_rules() noexcept { return Rules::kTraits; }

const Traits* find_rule(std::uint32_t number) noexcept {
  const std::span<const Traits> all = all_rules();
  return number - 1 < all.size() ? &all[number - 1] : nullptr;
}

const Traits& traits_of(UpdateRule rule) noexcept {
  static constexpr Traits kNone{.rule = {}, .name = "unknown", .lr = 0.0F};
  const Traits* const found = find_rule(static_cast<std::uint32_t>(rule));
  return found != nullptr ? *found : kNone;
}

std::size_t slots_per_element(UpdateRule rule, bool averaged, bool in_place) noexcept {
  const Traits& traits = traits_of(rule);
  return traits.slots_of(in_place).size() + (averaged && !in_place && !traits.is_sum ? 1 : 0);
}

const char* slot_name(UpdateRule rule, bool in_place, std::size_t slot) noexcept {
  const Traits& traits = traits_of(rule);
  const std::span<const Slot> slots = traits.slots_of(in_place);
  if (slot < slots.size()) return slots[slot].name;
  if (!in_place) return "ema";
  return traits.has_row_state() ? traits.row_slot.name : traits.slot_for_value();
}

}  // namespace update

const char* to_string(UpdateRule rule) noexcept { return update::traits_of(rule).name; }
float default_lr(UpdateRule rule) noexcept { return update::traits_of(rule).lr; }
float default_weight_decay(UpdateRule rule) noexcept { return update::traits_of(rule).weight_decay; }

}  // namespace ps_shm
