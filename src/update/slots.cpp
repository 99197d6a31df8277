// Settings of a variable's rule, and its slots: how many, their names, their first values.
#include <algorithm>
#include <cmath>

#include "update/rules.hpp"

namespace ps::update {

Settings settings_of(const Optimizer& optimizer, UpdateRule rule, bool regularize) noexcept {
  Settings settings{.rule = rule};
  switch (rule) {
    case UpdateRule::kAdd:
      return settings;
    case UpdateRule::kSgd:
      break;
    case UpdateRule::kMomentum:
    case UpdateRule::kNesterov:
      settings.momentum = optimizer.momentum;
      break;
    case UpdateRule::kAdagrad:
    case UpdateRule::kRowwiseAdagrad:
      settings.epsilon = optimizer.epsilon;
      settings.initial_accumulator = optimizer.initial_accumulator;
      break;
    case UpdateRule::kRmsProp:
      settings.epsilon = optimizer.epsilon;
      settings.rho = optimizer.rho;
      break;
    case UpdateRule::kAdam:
    case UpdateRule::kAdamW:
      settings.epsilon = optimizer.epsilon;
      settings.beta1 = optimizer.beta1;
      settings.beta2 = optimizer.beta2;
      break;
    case UpdateRule::kFtrl:
      settings.ftrl_beta = optimizer.ftrl_beta;
      if (regularize) settings.l1 = optimizer.l1;
      break;
  }
  if (regularize) {
    settings.l2 = optimizer.l2;
    if (rule != UpdateRule::kFtrl) settings.weight_decay = optimizer.weight_decay.value_or(default_weight_decay(rule));
  }
  settings.clip_value = optimizer.clip_value;
  settings.ema = optimizer.ema;
  return settings;
}

namespace {

std::size_t own_slots(UpdateRule rule) noexcept {
  switch (rule) {
    case UpdateRule::kAdd:
    case UpdateRule::kSgd:
    case UpdateRule::kRowwiseAdagrad:
      break;
    case UpdateRule::kMomentum:
    case UpdateRule::kNesterov:
    case UpdateRule::kAdagrad:
    case UpdateRule::kRmsProp:
      return 1;
    case UpdateRule::kAdam:
    case UpdateRule::kAdamW:
    case UpdateRule::kFtrl:
      return 2;
  }
  return 0;
}

}  // namespace

std::size_t slots_per_element(UpdateRule rule, bool averaged, bool in_place) noexcept {
  if (in_place) {
    if (rule == UpdateRule::kFtrl) return 1;                                               // {z, n}
    return rule == UpdateRule::kAdam || rule == UpdateRule::kAdamW ? 3 : own_slots(rule);  // {w, m, v, t}
  }
  return own_slots(rule) + (averaged && rule != UpdateRule::kAdd ? 1 : 0);
}

const char* slot_name(UpdateRule rule, bool in_place, std::size_t slot) noexcept {
  if (in_place && rule == UpdateRule::kRowwiseAdagrad) return "n of row";
  if (in_place && slot == 2) return "t";
  if (slot >= own_slots(rule)) return "ema";
  switch (rule) {
    case UpdateRule::kMomentum:
    case UpdateRule::kNesterov:
      return "momentum";
    case UpdateRule::kAdam:
    case UpdateRule::kAdamW:
      return slot == 0 ? "m" : "v";
    case UpdateRule::kFtrl:
      return slot == 0 ? "n" : "z";
    default:
      return "n";
  }
}

void initialise_slots(const Settings& settings, float learning_rate, const float* values, float* slots,
                      std::size_t stride, std::size_t count) noexcept {
  const std::size_t own = own_slots(settings.rule);
  for (std::size_t k = 0; k < own; ++k)
    std::fill_n(slots + k * stride, count, settings.rule == UpdateRule::kAdagrad ? settings.initial_accumulator : 0.0F);
  if (settings.rule == UpdateRule::kFtrl) {
    const float slope = settings.ftrl_beta / learning_rate + settings.l2;
    for (std::size_t i = 0; i < count; ++i)
      slots[stride + i] = values[i] == 0 ? 0.0F : -values[i] * slope - std::copysign(settings.l1, values[i]);
  }
  if (slots_per_element(settings) > own) std::copy_n(values, count, slots + own * stride);
}

}  // namespace ps::update
