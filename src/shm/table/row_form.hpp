// How the floats of a table's row lie, and its values and the optimizer's state one by one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shm/segment/table_layout.hpp"
#include "update/rules.hpp"

namespace ps_shm::shm {

class RowForm {
 public:
  explicit RowForm(const TableShm& table) noexcept
      : rule_(static_cast<UpdateRule>(table.rule)),
        width_(table.row_elements),
        record_(1 + table.slots),
        row_slots_(table.has_row_state) {}

  std::uint64_t width() const noexcept { return width_; }          // elements of a row
  std::uint64_t record() const noexcept { return record_; }        // floats of an element
  std::uint64_t row_slots() const noexcept { return row_slots_; }  // slots of the row itself: the last ones
  // All floats of each element, then the row's state, without what fills up the row.
  std::uint64_t raw_size() const noexcept { return width_ * record_ + row_slots_; }
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

  void split_state(const float* raw, float* state) const noexcept {
    for_state([&](std::uint64_t i, std::uint64_t place) { state[i] = raw[place]; });
  }
  // The floats of a row with these values and this state.
  void compose(const update::Settings& settings, float learning_rate, const float* values, const float* state,
               float* raw) const noexcept {
    update::initialise_elements(settings, learning_rate, values, raw, width_);
    for_state([&](std::uint64_t i, std::uint64_t place) { raw[place] = state[i]; });
  }

 private:
  // Calls body(index in the state as the user has it, index in the floats as they lie).
  template <class Body>
  void for_state(Body&& body) const noexcept {
    const std::uint64_t slots = element_slots();
    for (std::uint64_t slot = 0; slot < slots; ++slot)
      for (std::uint64_t i = 0; i < width_; ++i)
        body(slot * width_ + i, i * record_ + (slot + 1 == record_ ? 0 : slot + 1));  // 0: it replaces the value
    if (row_slots_ != 0) body(slots * width_, width_ * record_);
  }

  UpdateRule rule_;
  std::uint64_t width_, record_, row_slots_;
};

}  // namespace ps_shm::shm
