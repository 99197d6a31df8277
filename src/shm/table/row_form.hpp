// How the numbers of a table's row lie, and its values and the optimizer's state one by one. Rows of bfloat16 have all
// numbers of an element in bfloat16, and the state of a row in a float32 behind them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "shm/segment/table_layout.hpp"
#include "shm/slots/inplace_bfloat16.hpp"
#include "update/rules.hpp"

namespace ps_shm::shm {

class RowForm {
 public:
  RowForm(UpdateRule rule, DType dtype, std::uint64_t width) noexcept
      : rule_(rule),
        dtype_(dtype),
        width_(width),
        record_(1 + update::slots_per_element(rule, false, true)),
        row_slots_(update::traits_of(rule).has_row_state() ? 1 : 0) {}
  // Requires: is_table().
  explicit RowForm(const TableShm& table) noexcept
      : RowForm(static_cast<UpdateRule>(table.rule), static_cast<DType>(table.dtype), table.row_elements) {}

  DType dtype() const noexcept { return dtype_; }
  bool is_bfloat16() const noexcept { return dtype_ == DType::kBFloat16; }
  std::uint64_t width() const noexcept { return width_; }          // elements of a row
  std::uint64_t record() const noexcept { return record_; }        // numbers of an element
  std::uint64_t row_slots() const noexcept { return row_slots_; }  // slots of the row itself: the last ones
  // Floats that are occupied by all numbers of each element and the row's state, without what fills up the row.
  std::uint64_t raw_size() const noexcept { return row_state_at() + row_slots_; }
  std::uint64_t element_slots() const noexcept {
    return record_ - 1 + (update::traits_of(rule_).slot_for_value() != nullptr ? 1 : 0);
  }
  // The state as the user has it: slot by slot.
  std::uint64_t state_size() const noexcept { return width_ * element_slots() + row_slots_; }
  std::vector<std::string> slots() const {
    std::vector<std::string> names;
    for (std::uint64_t slot = 0; slot < element_slots() + row_slots_; ++slot)
      names.emplace_back(update::slot_name(rule_, true, slot));
    return names;
  }

  template <class ValueOf>
  void read_values(const float* raw, float* values, const ValueOf& value_of) const noexcept {
    if (is_bfloat16())
      read_bfloat16(values, raw, record_, width_, value_of);
    else
      read_elements(values, raw, record_, width_, value_of);
  }
  void split_state(const float* raw, float* state) const noexcept {
    const auto* const numbers = reinterpret_cast<const BFloat16Bits*>(raw);
    for_state([&](std::uint64_t i, std::uint64_t place) {
      state[i] = is_bfloat16() ? float{update::BFloat16{numbers[place]}} : raw[place];
    });
    if (row_slots_ != 0) state[state_size() - 1] = raw[row_state_at()];
  }
  // The elements [first, first + count) with these values, whose state is initial.
  void initialise(const update::Settings& settings, float lr, const float* values, std::uint64_t first,
                  std::uint64_t count, float* raw) const noexcept {
    if (is_bfloat16())
      update::initialise_elements(settings, lr, values,
                                  reinterpret_cast<BFloat16Bits*>(raw) + first * record_, count);
    else
      update::initialise_elements(settings, lr, values, raw + first * record_, count);
  }
  void initialise_row_state(const update::Settings& settings, float lr, float* raw) const noexcept {
    if (row_slots_ != 0) raw[row_state_at()] = update::first_row_state(settings, lr);
  }
  // The floats of a row with these values and this state; where the values are a function of the state, the values win.
  void compose(const update::Settings& settings, float lr, const float* values, const float* state,
               float* raw) const noexcept {
    initialise(settings, lr, values, 0, width_, raw);
    auto* const numbers = reinterpret_cast<BFloat16Bits*>(raw);
    for_state([&](std::uint64_t i, std::uint64_t place) {
      if (is_bfloat16())
        numbers[place] = update::rounded_to_nearest(state[i]);
      else
        raw[place] = state[i];
    });
    if (row_slots_ != 0) raw[row_state_at()] = state[state_size() - 1];
    if (is_bfloat16())
      update::keep_values(settings, lr, values, numbers, width_);
    else
      update::keep_values(settings, lr, values, raw, width_);
  }

 private:
  std::uint64_t row_state_at() const noexcept {
    return is_bfloat16() ? floats_of_bfloat16(width_ * record_) : width_ * record_;
  }
  // Calls body(index in the state as the user has it, index of the number as they lie) for the state of the elements.
  template <class Body>
  void for_state(Body&& body) const noexcept {
    const std::uint64_t slots = element_slots();
    for (std::uint64_t slot = 0; slot < slots; ++slot)
      for (std::uint64_t i = 0; i < width_; ++i)
        body(slot * width_ + i, i * record_ + (slot + 1 == record_ ? 0 : slot + 1));  // 0: it replaces the value
  }

  UpdateRule rule_;
  DType dtype_;
  std::uint64_t width_, record_, row_slots_;
};

}  // namespace ps_shm::shm
