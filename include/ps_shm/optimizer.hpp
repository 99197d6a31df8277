/// @file
/// Update rules and their settings: how a pushed gradient changes a variable.
#pragma once

#include <cstdint>
#include <optional>

#include "ps_shm/export.hpp"
#include "ps_shm/schedule.hpp"

namespace PS_SHM_API ps_shm {

/// The update rules. Their formulas, with sources, are in the repository's src/update/rule_table.hpp. In mode sync,
/// `add` applies the sum over the contributors of a step, and every optimizer the mean. The numbers are stored in
/// shared memory: never renumber them.
///
/// A slot is optimizer state: one float for each element.
enum class UpdateRule : std::uint32_t {
  kAdd = 1,              ///< no optimizer: value += delta
  kSgd = 2,              ///< no slot
  kMomentum = 3,         ///< 1 slot: momentum
  kNesterov = 4,         ///< 1 slot: momentum
  kAdagrad = 5,          ///< 1 slot: accumulator
  kRmsProp = 6,          ///< 1 slot: mean square
  kAdam = 7,             ///< 2 slots: m, v (in-place: a third one, t, counts the element's updates)
  kAdamW = 8,            ///< the slots of kAdam
  kFtrl = 9,             ///< 2 slots: n, z
  kRowwiseAdagrad = 10,  ///< layout inplace only: 1 accumulator per row of the first axis
};

/// The name of a rule, such as "rowwise_adagrad"; "unknown" for a number that names no rule.
///
/// @progress wait-free.
PS_SHM_API const char* to_string(UpdateRule rule) noexcept;

/// The optimizer of a job. Settings that its rule does not use are ignored.
struct Optimizer {
  UpdateRule rule = UpdateRule::kSgd;  ///< how a gradient changes values
  std::optional<float> lr{};           ///< at step 0; unset: default_lr(rule)
  Schedule schedule{};                 ///< multiplies lr by a function of the global step
  /// Modes async and ssp: scales the rate of each chunk's (in-place: block's) update by 1 / (1 + staleness).
  bool lr_staleness = false;
  float momentum = 0.9F;             ///< momentum, nesterov
  float beta1 = 0.9F;                ///< adam, adamw: decay of m
  float beta2 = 0.999F;              ///< adam, adamw: decay of v
  float rho = 0.9F;                  ///< rmsprop: decay of the mean square
  float epsilon = 1e-8F;             ///< adagrad, rowwise_adagrad, rmsprop, adam, adamw: added to the root
  float initial_accumulator = 0.1F;  ///< adagrad, rowwise_adagrad: initial value of the accumulators
  float ftrl_beta = 1.0F;            ///< ftrl: beta
  float l1 = 0.0F;                   ///< ftrl: l1, if VariableSpec::regularize
  /// Only for variables with `regularize`: adds l2 * value to the gradient. (ftrl has l2 in its own formula instead.)
  float l2 = 0.0F;
  /// Decoupled weight decay, value -= rate * weight_decay * value, only for variables with `regularize` and not for
  /// ftrl. Unset: 0.01 for adamw, 0 for the other rules.
  std::optional<float> weight_decay{};
  float clip_value = 0.0F;  ///< clips each element of a gradient to [-clip_value, clip_value]; 0: no clipping
  float clip_norm = 0.0F;   ///< scales each contributor's gradients to at most this global norm; 0: no clipping
  float ema = 0.0F;         ///< decay of the parameters' moving average, which takes one more slot; 0: no average

  bool operator==(const Optimizer&) const = default;
};

/// The learning rate that a rule has by default.
///
/// @progress wait-free.
PS_SHM_API float default_lr(UpdateRule rule) noexcept;

/// The weight decay that a rule has by default.
///
/// @progress wait-free.
PS_SHM_API float default_weight_decay(UpdateRule rule) noexcept;

}  // namespace ps_shm
