#include "train/sparse/own_table.hpp"

#include <algorithm>

namespace ps::train {

OwnTable::OwnTable(const JobConfig& config, const SparseModel& model)
    : settings_(
          update::settings_of(config.optimizer, config.optimizer.rule, config.optimizer.rule == UpdateRule::kFtrl)),
      schedule_(config.optimizer.schedule),
      base_rate_(config.optimizer.learning_rate.value_or(default_learning_rate(config.optimizer.rule))),
      rate_(base_rate_),
      clip_norm_(config.optimizer.clip_norm),
      width_(model.table().shape[1]) {
  const std::size_t rows = model.table().shape[0], elements = rows * width_;
  floats_ = update::with_element_update(settings_, rate_, 1.0F, [](const auto& by) -> std::size_t {
    if constexpr (requires { by.kFloats; })
      return by.kFloats;
    else
      return 1;
  });
  if (config.optimizer.rule == UpdateRule::kRowwiseAdagrad) of_rows_.assign(rows, settings_.initial_accumulator);
  std::vector<float> first(elements);
  model.initialize(config.seed, 0, first);
  memory_.resize(elements * floats_);
  for (std::size_t i = 0; i < elements; ++i)
    update::initialise_element(settings_, rate_, first[i], memory_.data() + i * floats_);
}

std::vector<float> OwnTable::values() const {
  std::vector<float> all(memory_.size() / floats_);
  update::with_element_value(settings_, rate_, [&](const auto& value_of) {
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = value_of(memory_.data() + i * floats_);
  });
  return all;
}

}  // namespace ps::train
