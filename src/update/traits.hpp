// What can be asked of an update rule without running it. The rows are in rule_table.hpp, with their arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ps/optimizer.hpp"

namespace ps::update {

struct Settings;

// A float that a rule keeps for an element (TensorFlow's word: momentum, Adam's m and v) or for a row.
struct Slot {
  // What it begins with, for an element that begins with `value`.
  using First = float (*)(const Settings& settings, float learning_rate, float value) noexcept;

  const char* name = nullptr;  // none: there is no such slot
  First first = nullptr;       // none: 0
};

// A setting that a rule uses: the job's field, and the field of a variable's settings that holds it.
struct HyperParameter {
  float Optimizer::*from = nullptr;
  float Settings::*to = nullptr;
};

// A rule's row.
struct Traits {
  UpdateRule rule;
  const char* name;
  float learning_rate;  // the usual one
  float weight_decay = 0.0F;

  Slot slots[2] = {};                    // of an element of versioned chunks
  Slot in_place_slots[3] = {};           // of an element in place; none: as `slots` says
  Slot::First first_in_place = nullptr;  // the float in front of them; none: the value itself
  Slot row_slot = {};                    // of a row in place
  HyperParameter hyper_parameters[3] = {};

  bool is_sum = false;              // pushes are differences to add, not gradients: they have no rate and no limits
  bool adds_in_place = false;       // without l2 and decay, an update adds a multiple of the gradient, nothing else
  bool regularizes_itself = false;  // its formula has l2: the gradient gets none, and there is no weight decay
  bool reads_by_rate = false;       // a value in place is computed of the learning rate, so the rate must not change
  bool works_versioned = true;      // every rule works in place

  constexpr std::span<const Slot> slots_of(bool in_place) const noexcept {
    const std::span<const Slot> all = in_place && in_place_slots[0].name != nullptr
                                          ? std::span<const Slot>(in_place_slots)
                                          : std::span<const Slot>(slots);
    std::size_t count = 0;
    while (count < all.size() && all[count].name != nullptr) ++count;
    return all.first(count);
  }
  constexpr bool has_row_state() const noexcept { return row_slot.name != nullptr; }
  // The slot that lies in the value's place where elements lie in place; it is one of `slots`. nullptr: the value does.
  constexpr const char* slot_for_value() const noexcept {
    return first_in_place != nullptr ? slots[slots_of(true).size()].name : nullptr;
  }
};

// All rules, in the order of their numbers.
std::span<const Traits> all_rules() noexcept;

// The row of the rule with this number, or nullptr: there is none.
const Traits* find_rule(std::uint32_t number) noexcept;

// The rule's row. Of a number that is no rule's: one with the name "?" and nothing else.
const Traits& traits_of(UpdateRule rule) noexcept;

// Slots per element, the average included, which in-place variables have not.
std::size_t slots_per_element(UpdateRule rule, bool averaged, bool in_place) noexcept;
inline std::size_t slots_per_element(UpdateRule rule, bool averaged) noexcept {
  return slots_per_element(rule, averaged, false);
}

// "momentum", "n", "ema" and so on; slot < slots_per_element(rule, averaged, in_place), or the first one behind of a rule
// that keeps state of rows in place, or a slot in the value's place.
const char* slot_name(UpdateRule rule, bool in_place, std::size_t slot) noexcept;

}  // namespace ps::update
