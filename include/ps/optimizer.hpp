// Update rules and their settings: what happens to a variable when a gradient is pushed.
#pragma once

#include <cstdint>
#include <optional>

#include "ps/export.hpp"
#include "ps/schedule.hpp"

namespace PS_API ps {

// Formulas and sources are in src/update/rule_table.hpp. In sync mode `add` applies the sum over the contributors, every
// optimizer the mean. The numbers stand in the segments: never renumber.
enum class UpdateRule : std::uint32_t {
  kAdd = 1,              // value += delta
  kSgd = 2,              //
  kMomentum = 3,         // 1 slot: momentum
  kNesterov = 4,         // 1 slot: momentum
  kAdagrad = 5,          // 1 slot: accumulator
  kRmsProp = 6,          // 1 slot: mean square
  kAdam = 7,             // 2 slots: m, v
  kAdamW = 8,            // 2 slots: m, v
  kFtrl = 9,             // 2 slots: n, z
  kRowwiseAdagrad = 10,  // layout inplace: 1 accumulator per row of the first axis
};

PS_API const char* to_string(UpdateRule rule) noexcept;

// A job's optimizer. Settings that its rule does not use are ignored.
struct Optimizer {
  UpdateRule rule = UpdateRule::kSgd;
  std::optional<float> learning_rate;  // at step 0; none: default_learning_rate(rule)
  Schedule schedule;                   // what multiplies it later
  bool staleness_scaling = false;      // async, ssp: scales the rate by 1 / (1 + staleness) of each chunk (block)
  float momentum = 0.9F;               // momentum, nesterov
  float beta1 = 0.9F, beta2 = 0.999F;  // adam, adamw
  float rho = 0.9F;                    // rmsprop: decay of the mean square
  float epsilon = 1e-8F;               // adagrads, rmsprop, adam, adamw: beside the root in the denominator
  float initial_accumulator = 0.1F;    // adagrad, rowwise_adagrad
  float ftrl_beta = 1.0F, l1 = 0.0F;   // ftrl
  float l2 = 0.0F;                     // of variables with `regularize`: adds l2 * value to the gradient
  std::optional<float> weight_decay;  // of the same: value -= rate * weight_decay * value; none: 0.01 for adamw, else 0
  float clip_value = 0.0F;            // limits each element of a gradient to [-clip_value, clip_value]; 0: none
  float clip_norm = 0.0F;             // scales a contributor's gradients to this global norm at most; 0: none
  float ema = 0.0F;                   // decay of the parameters' moving average, a further slot; 0: none

  bool operator==(const Optimizer&) const = default;
};

PS_API float default_learning_rate(UpdateRule rule) noexcept;
PS_API float default_weight_decay(UpdateRule rule) noexcept;

}  // namespace ps
