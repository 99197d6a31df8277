// The properties of update rules. The rows are in rule_table.hpp, together with their arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ps_shm/optimizer.hpp"

namespace ps_shm::update {

struct Settings;

// A float that a rule keeps for an element (TensorFlow's term: momentum, Adam's m and v) or for a row.
struct Slot {
  // Computes its initial value, for an element whose initial value is `value`.
  using First = float (*)(const Settings& settings, float lr, float value) noexcept;

  const char* name = nullptr;  // null: there is no such slot
  First first = nullptr;       // null: 0
};

// The slot of an element in place that counts the steps that its state contains; chunks have such a count themselves.
inline constexpr const char* kUpdateCount = "t";

// A setting that a rule uses: the job's field, and the field of a variable's settings that holds it.
struct HyperParameter {
  float Optimizer::*from = nullptr;
  float Settings::*to = nullptr;
};

// The row of a rule.
struct Traits {
  UpdateRule rule;
  const char* name;
  float lr;  // the default
  float weight_decay = 0.0F;

  Slot slots[2] = {};                    // of an element of versioned chunks
  Slot in_place_slots[3] = {};           // of an element in place; none: the same as `slots`
  Slot::First first_in_place = nullptr;  // initial value of the float before them; null: the value itself
  Slot row_slot = {};                    // of a row in place
  HyperParameter hyper_parameters[3] = {};

  bool is_sum = false;              // pushes are deltas to add, not gradients: no rate and no limits apply
  bool adds_in_place = false;       // without l2 and decay, an update only adds a multiple of the gradient
  bool regularizes_itself = false;  // its formula has l2: the gradient gets none, and there is no weight decay
  bool reads_by_rate = false;       // a value in place is computed from the learning rate, which must not change
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
  // The slot that replaces the value of elements in place; it is one of `slots`. nullptr: the value itself is stored.
  constexpr const char* slot_for_value() const noexcept {
    return first_in_place != nullptr ? slots[slots_of(true).size()].name : nullptr;
  }
};

// All rules, in the order of their numbers.
std::span<const Traits> all_rules() noexcept;

// The row of the rule with this number, or nullptr if there is none.
const Traits* find_rule(std::uint32_t number) noexcept;

// The rule's row. For a number without a rule: a row with the name "unknown" and nothing else.
const Traits& traits_of(UpdateRule rule) noexcept;

// The number of slots per element, including the average, which in-place variables do not have.
std::size_t slots_per_element(UpdateRule rule, bool averaged, bool in_place) noexcept;
inline std::size_t slots_per_element(UpdateRule rule, bool averaged) noexcept {
  return slots_per_element(rule, averaged, false);
}

// The name of a slot: "momentum", "n", "ema" and so on. slot < slots_per_element(rule, averaged, in_place); or, in
// place, the next one, if the rule keeps row state or a slot replaces the value.
const char* slot_name(UpdateRule rule, bool in_place, std::size_t slot) noexcept;

}  // namespace ps_shm::update
