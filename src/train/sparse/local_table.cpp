#include "train/sparse/local_table.hpp"

#include <algorithm>

namespace ps::train {

LocalTable::LocalTable(const JobConfig& config, const SparseModel& model, const TrainHooks& hooks)
    : settings_(update::settings_of(config.optimizer, config.optimizer.rule,
                                    update::traits_of(config.optimizer.rule).regularizes_itself)),
      schedule_(config.optimizer.schedule),
      base_rate_(config.optimizer.learning_rate.value_or(default_learning_rate(config.optimizer.rule))),
      rate_(base_rate_),
      clip_norm_(config.optimizer.clip_norm),
      width_(model.table().shape[1]) {
  const std::size_t rows = model.table().shape[0], elements = rows * width_;
  floats_ = 1 + update::slots_per_element(settings_.rule, false, true);
  if (update::traits_of(settings_.rule).has_row_state())
    of_rows_.assign(rows, update::first_row_state(settings_, rate_));
  std::vector<float> first(elements);
  model.initialize(config.seed, 0, first);
  hooks.replace_first(model.table().name, first);
  memory_.resize(elements * floats_);
  update::initialise_elements(settings_, rate_, first.data(), memory_.data(), elements);
}

std::vector<float> LocalTable::values() const {
  std::vector<float> all(memory_.size() / floats_);
  update::with_element_value(settings_, rate_, [&](const auto& value_of) {
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = value_of(memory_.data() + i * floats_);
  });
  return all;
}

}  // namespace ps::train
