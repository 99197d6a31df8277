// Update rules: pure arithmetic on arrays, run by whoever pushes. Knows no segment.
//
// Every function is element-wise (norms apart) and free of contraction (-ffp-contract=off), so its bits do not depend on
// the vector width that the processor offers, on how a variable is cut, nor on who computes it (sync mode helps itself
// to that). All are wait-free.
//
// With w the value, g the pushed gradient, r the learning rate, t the number of this update of the chunk (from 1)
//   g' = clip(scale * g) + l2 * w           clip to [-clip_value, clip_value]; then, decoupled weight decay:
//   w' = w - r * weight_decay * w           Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019
//   add       w += scale * g                neither clipped, nor decayed
//   sgd       w = w' - r * g'               Robbins and Monro 1951
//   momentum  m = momentum * m + g'; w = w' - r * m                  Polyak 1964, as TensorFlow's MomentumOptimizer
//   nesterov  m = momentum * m + g'; w = w' - r * (g' + momentum * m)  Sutskever et al. 2013, as TensorFlow's and PyTorch's
//   adagrad   n += g'^2; w = w' - r * g' / (sqrt(n) + epsilon)       Duchi, Hazan, Singer 2011; n starts at initial_accumulator
//   rmsprop   n = rho * n + (1 - rho) * g'^2; w = w' - r * g' / (sqrt(n) + epsilon)   Tieleman and Hinton 2012
//   adam      m = beta1 * m + (1 - beta1) * g'; v = beta2 * v + (1 - beta2) * g'^2
//             w = w' - r * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon * sqrt(1 - beta2^t))
//                                                                    Kingma and Ba 2015, algorithm 1
//   adamw     the same; it differs in its usual weight_decay         Loshchilov and Hutter 2019, without its schedule factor
//   ftrl      n += g''^2; q = (ftrl_beta + sqrt(n)) / r; z += g'' - (q - q of the step before) * w,
//             with g'' = clip(scale * g); w = 0 where |z| <= l1, else -(z - sign(z) * l1) / (q + l2)
//                                                                    McMahan et al., Ad Click Prediction, 2013, algorithm 1
//             with its sigma as defined in section 3, 1/eta - 1/eta of the step before, so that a rate that changes
//             leaves w where it is (algorithm 1 has this for a constant rate)
//             z starts where the formula gives the initial value back
//   rowwise_adagrad  of in-place variables alone: elements.hpp, with how the other rules differ there
//   ema       a further slot behind the rule's own: a = d * a + (1 - d) * w with d = min(ema, (1 + t) / (10 + t)); it
//             starts at the initial value             TensorFlow's ExponentialMovingAverage with num_updates
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ps/optimizer.hpp"

namespace ps::update {

// What every update of one variable has in common. Of ps::Optimizer, resolved: zeros where something does not apply.
struct Settings {
  UpdateRule rule = UpdateRule::kSgd;
  float momentum = 0.0F, beta1 = 0.0F, beta2 = 0.0F, rho = 0.0F, epsilon = 0.0F;
  float initial_accumulator = 0.0F, ftrl_beta = 0.0F, l1 = 0.0F;
  float l2 = 0.0F, weight_decay = 0.0F;
  float clip_value = 0.0F;  // 0: none
  float ema = 0.0F;         // 0: no such slot
};

// `rule`: the variable's. Its average is kept where the job asks for one and the rule is an optimizer.
Settings settings_of(const Optimizer& optimizer, UpdateRule rule, bool regularize) noexcept;

// Optimizer slots (TensorFlow's word: momentum, Adam's m and v) per element, the average included. In place: the floats
// beside its first one (elements.hpp); there is no average there.
std::size_t slots_per_element(UpdateRule rule, bool averaged, bool in_place) noexcept;
inline std::size_t slots_per_element(UpdateRule rule, bool averaged) noexcept {
  return slots_per_element(rule, averaged, false);
}
inline std::size_t slots_per_element(const Settings& settings) noexcept {
  return slots_per_element(settings.rule, settings.ema > 0);
}

// "momentum", "n", "ema" and so on; slot < slots_per_element(rule, averaged, in_place), or, of a rule that keeps state of
// rows, the first one behind.
const char* slot_name(UpdateRule rule, bool in_place, std::size_t slot) noexcept;

// What changes from one update to the next.
struct Moment {
  float learning_rate = 0.0F;
  std::uint64_t updates = 0;  // of this chunk before this one
};

// First values of the slots of `count` elements; slot k is at `slots + k * stride`.
void initialise_slots(const Settings& settings, float learning_rate, const float* values, float* slots,
                      std::size_t stride, std::size_t count) noexcept;

// out = rule(in, gradient) over `count` elements; slot k of either lies (k + 1) * stride floats behind the values.
// `scale` multiplies the gradient first. Requires: `out` does not overlap the others; count <= stride where there are
// slots. `following`: where the caller's next `in` lies, if known; asked for ahead of time, nothing else.
void apply(const Settings& settings, const Moment& moment, float* out, const float* in, std::size_t stride,
           const float* gradient, float scale, std::size_t count, const float* following = nullptr) noexcept;

// One contributor's gradient of a sync step, and what it is multiplied by (clip_scale).
struct Contribution {
  const float* gradient = nullptr;
  float scale = 1.0F;
};

// The same with the gradients of several contributors, each clipped for itself, summed in the order given: rank order
// makes sync mode deterministic. Optimizers take the mean, `add` takes the sum. Requires: at least one contributor.
void apply_combined(const Settings& settings, const Moment& moment, float* out, const float* in, std::size_t stride,
                    std::span<const Contribution> contributions, std::size_t count,
                    const float* following = nullptr) noexcept;

// out = in + clip(scale * gradient), or without `in` (nullptr) the latter alone: how an accumulator is filled.
void accumulate(float* out, const float* in, const float* gradient, float scale, float clip_value,
                std::size_t count) noexcept;

// Sum of squares, in float64 and in an order that depends on `count` alone.
double squared_norm(const float* values, std::size_t count) noexcept;

// What a gradient of that global norm is multiplied by: clip_norm / max(norm, clip_norm), as TensorFlow's
// clip_by_global_norm; 1 where clip_norm is 0.
float clip_scale(double squared_norm, float clip_norm) noexcept;

}  // namespace ps::update
