// A table in the memory of this process: rows whose elements are stored next to their optimizer state, with the same
// arithmetic as in-place variables of a job. It is what a plain loop without a parameter server would do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ps_shm/job_config.hpp"
#include "train/log/train_log.hpp"
#include "train/models/sparse/sparse_model.hpp"
#include "update/elements.hpp"

namespace ps_shm::train {

class LocalTable {
 public:
  LocalTable(const JobConfig& config, const SparseModel& model, const TrainHooks& hooks);

  // The rate of updates from here on.
  void set_step(std::uint64_t step) noexcept { rate_ = base_rate_ * schedule_.factor(step); }

  // Calls body(rows) with Rows as required by example_steps.hpp, valid until the next set_step().
  template <class Body>
  decltype(auto) with_rows(Body&& body);

  std::vector<float> values() const;
  std::vector<LocalArray> arrays(const ParameterSpec& table) const;  // including the optimizer's slots

 private:
  template <class Update, class Value>
  struct Rows;

  float* row(std::uint32_t id) { return memory_.data() + std::size_t{id} * width_ * floats_; }

  // By value, so that the compiler sees that no store to the table changes it.
  template <class Update>
  void apply(const Update by, std::span<const std::uint32_t> ids, std::span<const float> gradients) {
    const float* g = gradients.data();
    for (const std::uint32_t id : ids) {
      float* x = row(id);
      if constexpr (requires { by.add_to_state(g, width_); }) {
        float& state = of_rows_[id];
        state += by.add_to_state(g, width_);
        const auto of_element = by.with_state(state);
        for (std::size_t k = 0; k < width_; ++k) of_element(x + k, *g++);
      } else {
        for (std::size_t k = 0; k < width_; ++k, x += Update::kFloats) by(x, *g++);
      }
    }
  }
  void push_clipped(std::span<const std::uint32_t> ids, std::span<const float> gradients);

  void put(std::span<const float> numbers, std::size_t place);
  std::vector<float> get(std::size_t place) const;

  update::Settings settings_;
  Schedule schedule_;
  float base_rate_, rate_;
  float clip_norm_;
  std::size_t width_, floats_;  // elements per row; floats per element, including its state
  std::vector<float> memory_;
  std::vector<float> of_rows_;  // state of complete rows
};

template <class Update, class Value>
struct LocalTable::Rows {
  LocalTable& table;
  Update update;
  Value value_of;
  using Id = std::uint32_t;
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
    if (table.clip_norm_ == 0.0F) return table.apply(update, ids, gradients);
    table.push_clipped(ids, gradients);
  }

 private:
  float* row(std::uint32_t id) const { return table.row(id); }
};

template <class Body>
decltype(auto) LocalTable::with_rows(Body&& body) {
  return update::with_element_update(settings_, rate_, 1.0F, [&](const auto& by) -> decltype(auto) {
    using Update = std::decay_t<decltype(by)>;
    const auto value_of = update::element_value_of<typename Update::Rule>(settings_, rate_);
    Rows<Update, std::decay_t<decltype(value_of)>> rows{*this, by, value_of};
    return body(rows);
  });
}

}  // namespace ps_shm::train
