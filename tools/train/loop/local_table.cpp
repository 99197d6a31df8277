#include "train/loop/local_table.hpp"

#include <algorithm>

#include "config/job_settings.hpp"

namespace ps_shm::train {

LocalTable::LocalTable(const JobConfig& config, const SparseModel& model, const TrainHooks& hooks)
    : settings_(update::settings_of(config.optimizer, config.optimizer.rule,
                                    update::traits_of(config.optimizer.rule).regularizes_itself)),
      schedule_(config.optimizer.schedule),
      base_rate_(config.optimizer.lr.value_or(default_lr(config.optimizer.rule))),
      rate_(base_rate_),
      clip_norm_(config.optimizer.clip_norm),
      width_(model.table().shape[1]) {
  const std::size_t rows = model.table().shape[0], elements = rows * width_;
  floats_ = 1 + update::slots_per_element(settings_.rule, false, true);
  if (update::traits_of(settings_.rule).has_row_state())
    of_rows_.assign(rows, update::first_row_state(settings_, rate_));
  std::vector<float> first(elements);
  const std::string& name = model.table().name;
  if (!hooks.read_checkpoint(name, "", first)) {
    model.initialize(config::seed_of(config), 0, first);
    hooks.replace_first(name, first);
  }
  memory_.resize(elements * floats_);
  update::initialise_elements(settings_, rate_, first.data(), memory_.data(), elements);
  for (std::size_t slot = 0; slot + 1 < floats_; ++slot)
    if (hooks.read_checkpoint(name, update::slot_name(settings_.rule, true, slot), first)) put(first, slot + 1);
  const update::Traits& traits = update::traits_of(settings_.rule);
  if (traits.slot_for_value() != nullptr && hooks.read_checkpoint(name, traits.slot_for_value(), first)) put(first, 0);
  if (traits.has_row_state()) hooks.read_checkpoint(name, traits.row_slot.name, of_rows_);
}

void LocalTable::push_clipped(std::span<const std::uint32_t> ids, std::span<const float> gradients) {
  const double squares = update::squared_norm(gradients.data(), gradients.size());
  update::with_element_update(settings_, rate_, update::clip_scale(squares, clip_norm_),
                              [&](const auto& clipped) { apply(clipped, ids, gradients); });
}

// The floats at that position of every element.
void LocalTable::put(std::span<const float> numbers, std::size_t place) {
  for (std::size_t i = 0; i < numbers.size(); ++i) memory_[i * floats_ + place] = numbers[i];
}

std::vector<float> LocalTable::get(std::size_t place) const {
  std::vector<float> all(memory_.size() / floats_);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = memory_[i * floats_ + place];
  return all;
}

std::vector<LocalArray> LocalTable::arrays(const ParameterSpec& table) const {
  const std::vector<std::uint64_t> shape(table.shape.begin(), table.shape.end());
  std::vector<LocalArray> all = {{table.name, "", shape, values()}};
  for (std::size_t slot = 0; slot + 1 < floats_; ++slot)
    all.push_back({table.name, update::slot_name(settings_.rule, true, slot), shape, get(slot + 1)});
  const update::Traits& traits = update::traits_of(settings_.rule);
  if (traits.slot_for_value() != nullptr) all.push_back({table.name, traits.slot_for_value(), shape, get(0)});
  if (traits.has_row_state()) all.push_back({table.name, traits.row_slot.name, {shape[0]}, of_rows_});
  return all;
}

std::vector<float> LocalTable::values() const {
  std::vector<float> all(memory_.size() / floats_);
  update::with_element_value(settings_, rate_, [&](const auto& value_of) {
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = value_of(memory_.data() + i * floats_);
  });
  return all;
}

}  // namespace ps_shm::train
