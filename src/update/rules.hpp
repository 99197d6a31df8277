// Update rules: pure arithmetic on arrays, run by whoever pushes. Knows no segment.
//
// Every function is element-wise (norms apart) and free of contraction (-ffp-contract=off), so its bits do not depend on
// the vector width that the processor offers, on how a variable is cut, nor on who computes it (sync mode helps itself
// to that). All are wait-free.
//
// Formulas and sources are in rule_table.hpp, what can be asked of a rule is in traits.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ps/optimizer.hpp"
#include "ps/types.hpp"
#include "update/traits.hpp"

namespace ps::update {

// What every update of one variable has in common. Of ps::Optimizer, resolved: zeros where something does not apply.
struct Settings {
  UpdateRule rule = UpdateRule::kSgd;
  float momentum = 0.0F, beta1 = 0.0F, beta2 = 0.0F, rho = 0.0F, epsilon = 0.0F;
  float initial_accumulator = 0.0F, ftrl_beta = 0.0F, l1 = 0.0F;
  float l2 = 0.0F, weight_decay = 0.0F;
  float clip_value = 0.0F;        // 0: none
  float ema = 0.0F;               // 0: no such slot
  DType dtype = DType::kFloat32;  // other than that: the floats are the bytes of elements of that type
};

// `rule`, `dtype`: the variable's. Its average is kept where the job asks for one and the rule is an optimizer.
Settings settings_of(const Optimizer& optimizer, UpdateRule rule, bool regularize,
                     DType dtype = DType::kFloat32) noexcept;

inline std::size_t slots_per_element(const Settings& settings) noexcept {
  return slots_per_element(settings.rule, settings.ema > 0);
}

// What changes from one update to the next.
struct Moment {
  float learning_rate = 0.0F;
  std::uint64_t updates = 0;  // of this chunk before this one
};

// First values of the slots of `count` elements; slot k is at `slots + k * stride`.
void initialise_slots(const Settings& settings, float learning_rate, const float* values, float* slots,
                      std::size_t stride, std::size_t count) noexcept;

// The same for elements in place: each lies with its slots behind it, one after the other.
void initialise_elements(const Settings& settings, float learning_rate, const float* values, float* elements,
                         std::size_t count) noexcept;

// First value of what a row in place keeps. Requires: its rule keeps state of rows.
float first_row_state(const Settings& settings, float learning_rate) noexcept;

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
// makes sync mode deterministic. Optimizers take the mean, a rule that is a sum takes the sum. Requires: a contributor.
void apply_combined(const Settings& settings, const Moment& moment, float* out, const float* in, std::size_t stride,
                    std::span<const Contribution> contributions, std::size_t count,
                    const float* following = nullptr) noexcept;

// out = in + clip(scale * gradient), or without `in` (nullptr) the latter alone: how an accumulator is filled.
void accumulate(float* out, const float* in, const float* gradient, float scale, float clip_value,
                std::size_t count) noexcept;

// How an update changes values. The numbers stand in gradient segments.
enum class Change : std::uint64_t {
  kStep = 0,    // by the rule, with a gradient
  kAdd = 1,     // past it: a difference is added, whatever the rule; state stays
  kAssign = 2,  // past it: the values are given; state stays
  kReset = 3,   // the same, and state is what it is when a variable begins with these values
};

// out = in, changed past the rule. Where a value is a function of state (ftrl), that is solved for; kAssign sets the
// average, too. `out` may be `in`; else they do not overlap. Slots lie as for apply(). Requires: not kStep.
void change(const Settings& settings, Change how, float learning_rate, float* out, const float* in, std::size_t stride,
            const float* values, std::size_t count) noexcept;

// Whether there is a sum of two elements of that type in the type: integers, which wrap around, float32 and float64.
bool has_sum(DType dtype) noexcept;

// out = in + delta, elements of that type that lie in so many floats. `out` may be `in`. Requires: has_sum(dtype).
void add_elements(DType dtype, float* out, const float* in, const float* delta, std::size_t count) noexcept;

// Sum of squares, in float64 and in an order that depends on `count` alone.
double squared_norm(const float* values, std::size_t count) noexcept;

// What a gradient of that global norm is multiplied by: clip_norm / max(norm, clip_norm), as TensorFlow's
// clip_by_global_norm; 1 where clip_norm is 0.
float clip_scale(double squared_norm, float clip_norm) noexcept;

}  // namespace ps::update
