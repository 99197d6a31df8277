// A table in memory of this process alone: the rows, each element with its optimizer's state beside it, and the same
// arithmetic that in-place variables of a job have. It is what a plain loop without a parameter server would do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ps/job_config.hpp"
#include "train/sparse/sparse_model.hpp"
#include "train/train_log.hpp"
#include "update/elements.hpp"

namespace ps::train {

class LocalTable {
 public:
  LocalTable(const JobConfig& config, const SparseModel& model, const TrainHooks& hooks);

  // Rate of the updates from here on.
  void set_step(std::uint64_t step) noexcept { rate_ = base_rate_ * schedule_.factor(step); }

  // Calls body(rows) with Rows as example_steps.hpp wants them, until the next set_step().
  template <class Body>
  decltype(auto) with_rows(Body&& body);

  std::vector<float> values() const;
  std::vector<LocalArray> arrays(const ParameterSpec& table) const;  // with the optimizer's slots

 private:
  template <class Update, class Value>
  struct Rows;

  void put(std::span<const float> numbers, std::size_t place);
  std::vector<float> get(std::size_t place) const;

  update::Settings settings_;
  Schedule schedule_;
  float base_rate_, rate_;
  float clip_norm_;
  std::size_t width_, floats_;  // of a row: elements; of an element: floats, its state included
  std::vector<float> memory_;
  std::vector<float> of_rows_;  // state that a row has as a whole
};

template <class Update, class Value>
struct LocalTable::Rows {
  LocalTable& table;
  Update update;
  Value value_of;
  static constexpr bool kSumsUp = false;

  void prefetch(std::span<const std::uint32_t> ids) const {
    for (const std::uint32_t id : ids) __builtin_prefetch(row(id), 1);
  }

  void pull(std::span<const std::uint32_t> ids, std::span<float> out) const {
    float* to = out.data();
    for (const std::uint32_t id : ids) {
      const float* from = row(id);
      for (std::size_t k = 0; k < table.width_; ++k, from += table.floats_) *to++ = value_of(from);
    }
  }

  void push(std::span<const std::uint32_t> ids, std::span<const float> gradients) const {
    if (table.clip_norm_ == 0.0F) return apply(update, ids, gradients);
    const double squares = update::squared_norm(gradients.data(), gradients.size());
    update::with_element_update(table.settings_, table.rate_, update::clip_scale(squares, table.clip_norm_),
                                [&](const auto& clipped) { apply(clipped, ids, gradients); });
  }

 private:
  float* row(std::uint32_t id) const { return table.memory_.data() + std::size_t{id} * table.width_ * table.floats_; }

  // By value: the compiler sees that no store to the table changes it.
  template <class ThisUpdate>
  void apply(const ThisUpdate by, std::span<const std::uint32_t> ids, std::span<const float> gradients) const {
    const float* g = gradients.data();
    for (const std::uint32_t id : ids) {
      float* x = row(id);
      if constexpr (requires { by.add_to_state(g, table.width_); }) {
        float& state = table.of_rows_[id];
        state += by.add_to_state(g, table.width_);
        const auto of_element = by.with_state(state);
        for (std::size_t k = 0; k < table.width_; ++k) of_element(x + k, *g++);
      } else {
        for (std::size_t k = 0; k < table.width_; ++k, x += ThisUpdate::kFloats) by(x, *g++);
      }
    }
  }
};

template <class Body>
decltype(auto) LocalTable::with_rows(Body&& body) {
  return update::with_element_update(settings_, rate_, 1.0F, [&](const auto& by) -> decltype(auto) {
    return update::with_element_value(settings_, rate_, [&](const auto& value_of) -> decltype(auto) {
      Rows<std::decay_t<decltype(by)>, std::decay_t<decltype(value_of)>> rows{*this, by, value_of};
      return body(rows);
    });
  });
}

}  // namespace ps::train
