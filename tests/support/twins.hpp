// Variables and rows in private memory that follow the float32 form of their rule, and round as their dtype says: those
// in shared memory have to have the same bits.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "ps_shm/job_config.hpp"
#include "ps_shm/optimizer.hpp"
#include "update/bfloat16.hpp"
#include "update/dtypes.hpp"
#include "update/elements.hpp"
#include "update/rules.hpp"

namespace ps_shm::test {

inline float rounded(float value) { return update::BFloat16{update::rounded_to_nearest(value)}; }

inline constexpr float kSmallStep = 1.0F / 1024;  // an eighth of the distance from 1 to the next bfloat16

// Checks elements that began with 1 and have had so many changes by kSmallStep. Each rounds up with probability 1/8, by
// 1/128: a variance of 7/64 / 128^2 for each element.
inline void check_mean_of_small_steps(const std::vector<float>& values, int changes) {
  double sum = 0;
  for (const float value : values) {
    sum += value;
    REQUIRE(value < 1 + 20.0F / 128);  // after 40 changes 5 steps up on average, with a deviation of 2: each draws anew
  }
  const double count = double(values.size()), expected = 1 + changes * double(kSmallStep);
  const double sigma = std::sqrt(changes * 7.0 / 64 / count) / 128;
  CHECK(std::abs(sum / count - expected) < 5 * sigma);
}

// A variable "v" that is updated as a whole. Its arrays are the values and, behind each other, the state.
class Twin {
 public:
  Twin(const JobConfig& config, UpdateRule rule, const std::vector<float>& first, DType dtype = DType::kFloat32)
      : settings_(update::settings_of(config.optimizer, rule, 1)),
        count_(first.size()),
        arrays_(1 + update::slots_per_element(settings_)),
        now_(first),
        next_(arrays_ * count_) {
    if (dtype == DType::kBFloat16) seed_ = update::rounding_seed(*config.seed, "v");
    now_.resize(arrays_ * count_);
    update::initialise_slots(settings_, *config.optimizer.lr, now_.data(), now_.data() + count_, count_, count_);
  }

  std::size_t count() const { return count_; }
  std::size_t arrays() const { return arrays_; }
  std::vector<float> array(std::size_t which) const {
    return {now_.begin() + std::ptrdiff_t(which * count_), now_.begin() + std::ptrdiff_t((which + 1) * count_)};
  }
  std::vector<float> values() const { return array(0); }

  // The update behind so many others.
  void step(std::uint64_t updates, float rate, const std::vector<update::Contribution>& gradients) {
    if (gradients.size() == 1)
      update::apply(settings_, {rate, updates}, next_.data(), now_.data(), count_, gradients[0].gradient,
                    gradients[0].scale, count_);
    else
      update::apply_combined(settings_, {rate, updates}, next_.data(), now_.data(), count_, gradients, count_);
    if (seed_) {
      const std::uint64_t key = update::rounding_key(*seed_, updates);
      for (std::size_t i = 0; i < count_; ++i)
        next_[i] =
            update::BFloat16{update::round_by(next_[i], update::rounding_bits(key, static_cast<std::uint32_t>(i)))};
    }
    now_.swap(next_);
  }

 private:
  update::Settings settings_;
  std::size_t count_, arrays_;
  std::optional<std::uint64_t> seed_;  // of what rounds the values
  std::vector<float> now_, next_;
};

// Rows in place, whose numbers, state included, are rounded behind each update, if they are of bfloat16.
class TwinRows {
 public:
  // The numbers of its elements, with their state, as floats; then the row's own state.
  struct Row {
    std::vector<float> numbers;
    float state = 0;
  };

  TwinRows(const Optimizer& optimizer, float regularize, std::uint64_t width, float rate,
           DType dtype = DType::kBFloat16)
      : settings_(update::settings_of(optimizer, optimizer.rule, regularize)),
        width_(width),
        record_(1 + update::slots_per_element(settings_.rule, false, true)),
        rate_(rate),
        is_rounded_(dtype == DType::kBFloat16) {}

  std::uint64_t record() const { return record_; }
  const Row& at(std::uint64_t key) const { return rows_.at(key); }

  void begin(std::uint64_t key, const float* values) {
    Row& row = rows_[key];
    row.numbers.resize(width_ * record_);
    update::initialise_elements(settings_, rate_, values, row.numbers.data(), width_);
    if (is_rounded_)
      for (float& number : row.numbers) number = rounded(number);
    if (update::traits_of(settings_.rule).has_row_state()) row.state = update::first_row_state(settings_, rate_);
  }
  // `bits`: what the random bits depend on; `first`: the number of the row's first element among those that have them.
  void push(std::uint64_t key, const float* gradient, std::uint64_t bits, std::uint64_t first = 0) {
    Row& row = rows_.at(key);
    update::with_element_update(settings_, rate_, 1.0F, [&](const auto& update) {
      const auto each = [&](const auto& of_element) {
        for (std::uint64_t i = 0; i < width_; ++i) of_element(row.numbers.data() + i * record_, gradient[i]);
      };
      if constexpr (requires { update.with_state(0.0F); })
        each(update.with_state(row.state += update.add_to_state(gradient, width_)));
      else
        each(update);
    });
    if (!is_rounded_) return;
    for (std::uint64_t i = 0; i < row.numbers.size(); ++i) {
      const auto number = static_cast<std::uint32_t>(first * record_ + i);
      row.numbers[i] = update::BFloat16{update::round_by(row.numbers[i], update::rounding_bits(bits, number))};
    }
  }
  template <class KeyList>
  std::vector<float> values(const KeyList& keys) const {
    std::vector<float> all;
    update::with_element_value(settings_, rate_, [&](const auto& value_of) {
      for (const std::uint64_t key : keys)
        for (std::uint64_t i = 0; i < width_; ++i) all.push_back(value_of(rows_.at(key).numbers.data() + i * record_));
    });
    return all;
  }

 private:
  update::Settings settings_;
  std::uint64_t width_, record_;
  float rate_;
  bool is_rounded_;
  std::map<std::uint64_t, Row> rows_;
};

}  // namespace ps_shm::test
