// Pulling and pushing rows.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ps_shm/errors.hpp"
#include "worker/impl.hpp"
#include "worker/push_scope.hpp"

namespace ps_shm {

using shm::Counter;

namespace {

// Returns whether the ids ascend, so that none is repeated.
bool require_rows(const VariableState& state, std::span<const std::uint64_t> ids, std::size_t floats,
                  const char* verb) {
  if (!state.rows)
    throw Error(fmt::format("{} of rows of variable '{}': it is {}; declare it with layout inplace and a first axis",
                            verb, state.name, state.layout == Layout::kInplace ? "a scalar" : "versioned"));
  const std::uint64_t width = state.rows->table().row_elements();
  if (floats != ids.size() * width)
    throw Error(fmt::format("{} of {} rows of variable '{}': a row has {} elements, the span has {} in all", verb,
                            ids.size(), state.name, width, floats));
  bool are_ascending = true;
  if (const std::uint64_t* outside = state.rows->find_outside(ids, are_ascending))
    throw Error(fmt::format("{} of rows of variable '{}': id {} (number {} of {}) is out of range; it has {} rows",
                            verb, state.name, static_cast<std::int64_t>(*outside),  // a program may have meant -1
                            outside - ids.data(), ids.size(), state.rows->table().rows()));
  return are_ascending;
}

}  // namespace

void Worker::Impl::pull_rows(VariableState& state, Ids ids, std::span<float> out) {
  static_cast<void>(require_rows(state, ids, out.size(), "pull"));
  note_pull();
  state.rows->begin_watch(ids, job);
  state.rows->pull(ids, out.data(), state.settings, live.settings.lr, threads);
  count(Counter::kPulls).bump_relaxed(1);
}

void Worker::Impl::push_rows(VariableState& state, Ids ids, std::span<const float> gradients) {
  bool are_ascending = require_rows(state, ids, gradients.size(), "push");
  if (limits_pushes) [[unlikely]] {
    if (config.optimizer.lr_staleness && !state.is_sum)
      throw Error(
          fmt::format("push of rows of variable '{}': lr-staleness needs the staleness of every row, which is only "
                      "measured on a sample; start the job without it",
                      state.name));
    if (mode->drops_pushes()) {
      count(Counter::kPushes).bump_relaxed(1);
      return;
    }
  }
  if (!are_ascending) are_ascending = state.rows->combine(ids, gradients);
  float scale = 1.0F;
  if (limits_pushes && live.settings.clip_norm > 0 && state.is_clipped())
    scale = update::clip_scale(update::squared_norm(gradients.data(), gradients.size()), live.settings.clip_norm);
  PushScope scope(*this);
  if (gradients.size() >= PushScope::kLongFloats) scope.take_time();
  state.follow(live.settings);
  state.rows->push(ids, gradients.data(), state.settings, row_rate(), scale, config.adds, are_ascending, threads);
  state.rows->end_watch([&](std::uint64_t staleness) { shm::record_staleness(entry, staleness); });
  count(Counter::kPushes).bump_relaxed(1);
}

void Worker::Impl::change_rows(VariableState& state, update::Change how, Ids ids, std::span<const float> values) {
  bool are_ascending = require_rows(state, ids, values.size(), how == update::Change::kAdd ? "add" : "assign");
  if (how == update::Change::kAdd && !are_ascending) are_ascending = state.rows->combine(ids, values);
  PushScope scope(*this);
  if (values.size() >= PushScope::kLongFloats) scope.take_time();
  state.rows->change(how, ids, values.data(), state.settings, live.settings.lr, are_ascending, threads);
  state.rows->end_watch([&](std::uint64_t staleness) { shm::record_staleness(entry, staleness); });
  count(Counter::kPushes).bump_relaxed(1);
}

Worker::Impl::Ids Worker::Impl::widen(std::span<const std::uint32_t> ids) {
  wide_ids.assign(ids.begin(), ids.end());
  return wide_ids;
}

void Worker::pull_rows(const Variable& variable, std::span<const std::uint32_t> ids, std::span<float> out) {
  Impl& impl = owned();
  impl.pull_rows(*variable.state_, impl.widen(ids), out);
}
void Worker::pull_rows(const Variable& variable, std::span<const std::uint64_t> ids, std::span<float> out) {
  owned().pull_rows(*variable.state_, ids, out);
}
void Worker::push_rows(const Variable& variable, std::span<const std::uint32_t> ids, std::span<const float> gradients) {
  Impl& impl = owned();
  impl.push_rows(*variable.state_, impl.widen(ids), gradients);
}
void Worker::push_rows(const Variable& variable, std::span<const std::uint64_t> ids, std::span<const float> gradients) {
  owned().push_rows(*variable.state_, ids, gradients);
}
void Worker::add_rows(const Variable& variable, std::span<const std::uint32_t> ids, std::span<const float> deltas) {
  Impl& impl = owned();
  impl.change_rows(*variable.state_, update::Change::kAdd, impl.widen(ids), deltas);
}
void Worker::add_rows(const Variable& variable, std::span<const std::uint64_t> ids, std::span<const float> deltas) {
  owned().change_rows(*variable.state_, update::Change::kAdd, ids, deltas);
}
void Worker::assign_rows(const Variable& variable, std::span<const std::uint32_t> ids, std::span<const float> values,
                         Slots slots) {
  Impl& impl = owned();
  impl.change_rows(*variable.state_, how_to_assign(slots), impl.widen(ids), values);
}
void Worker::assign_rows(const Variable& variable, std::span<const std::uint64_t> ids, std::span<const float> values,
                         Slots slots) {
  owned().change_rows(*variable.state_, how_to_assign(slots), ids, values);
}
void Worker::prefetch_rows(const Variable& variable, std::span<const std::uint32_t> ids) const noexcept {
  if (!variable.state_->rows) return;
  std::array<std::uint64_t, 64> wide;
  for (std::size_t at = 0, count; at < ids.size(); at += count) {
    count = std::min(wide.size(), ids.size() - at);
    std::copy_n(ids.begin() + std::ptrdiff_t(at), count, wide.begin());
    variable.state_->rows->prefetch(std::span(wide).first(count));
  }
}
void Worker::prefetch_rows(const Variable& variable, std::span<const std::uint64_t> ids) const noexcept {
  if (variable.state_->rows) variable.state_->rows->prefetch(ids);
}

}  // namespace ps_shm
