// Update rules: pure arithmetic on arrays, executed by the worker that pushes. This module does not know about
// segments.
//
// Every function is element-wise (except norms) and free of contraction (-ffp-contract=off). The bits of the result
// therefore do not depend on the processor's vector width, on how a variable is divided, or on which worker computes it
// (sync mode relies on that). All functions are wait-free.
//
// Formulas and sources are in rule_table.hpp, the properties of rules in traits.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ps_shm/optimizer.hpp"
#include "ps_shm/types.hpp"
#include "update/bfloat16.hpp"
#include "update/traits.hpp"

namespace ps_shm::update {

// The settings that all updates of one variable have in common: ps_shm::Optimizer, resolved, with zeros for what does
// not apply.
struct Settings {
  UpdateRule rule = UpdateRule::kSgd;
  float momentum = 0.0F, beta1 = 0.0F, beta2 = 0.0F, rho = 0.0F, epsilon = 0.0F;
  float initial_accumulator = 0.0F, ftrl_beta = 0.0F, l1 = 0.0F;
  float l2 = 0.0F, weight_decay = 0.0F;
  float clip_value = 0.0F;        // 0: none
  float ema = 0.0F;               // 0: no such slot
  float lr_scale = 1.0F;          // multiplies each learning rate that a function below gets
  DType dtype = DType::kFloat32;  // other dtypes: the floats hold the bytes of elements of that dtype
  std::uint64_t rounding = 0;     // bfloat16: rounding_seed()
};

// `rule` and the following: the variable's (VariableSpec). An average is kept if the job asks for one and the rule is an
// optimizer.
Settings settings_of(const Optimizer& optimizer, UpdateRule rule, float regularize, DType dtype = DType::kFloat32,
                     float lr_scale = 1.0F) noexcept;

inline std::size_t slots_per_element(const Settings& settings) noexcept {
  return slots_per_element(settings.rule, settings.ema > 0);
}

// What changes from one chunk and update to the next.
struct Moment {
  float lr = 0.0F;
  std::uint64_t updates = 0;  // number of earlier updates that this chunk's state contains
  std::uint64_t first = 0;    // number of the chunk's first element in the variable; bfloat16 alone needs it
};

// Initial values of the slots of `count` elements with these values of the settings' dtype; slot k is at
// `slots + k * stride`.
void initialise_slots(const Settings& settings, float lr, const float* values, float* slots,
                      std::size_t stride, std::size_t count) noexcept;

// The same for elements in place: each element is followed by its slots.
void initialise_elements(const Settings& settings, float lr, const float* values, float* elements,
                         std::size_t count) noexcept;
// The same, rounded to nearest.
void initialise_elements(const Settings& settings, float lr, const float* values, BFloat16Bits* elements,
                         std::size_t count) noexcept;

// For elements in place whose slots were just given by someone else: where the value is a function of the slots (ftrl),
// and these slots give another one at this rate, the last of them is solved for the value.
void keep_values(const Settings& settings, float lr, const float* values, float* elements, std::size_t count) noexcept;
void keep_values(const Settings& settings, float lr, const float* values, BFloat16Bits* elements,
                 std::size_t count) noexcept;

// Initial value of the state of a row in place. Requires: the rule keeps row state.
float first_row_state(const Settings& settings, float lr) noexcept;

// All functions below on chunks count elements of the settings' dtype if it takes gradients, otherwise floats. Values of
// bfloat16 take half of a stride: then slot k lies (k + 1) * stride - stride / 2 floats after them, and new values are
// rounded stochastically (bfloat16.hpp).
//
// out = rule(in, gradient) over `count` elements; slot k of each lies (k + 1) * stride floats after the values. `scale`
// multiplies the gradient first. Requires: `out` is `in`, or does not overlap the others; count <= stride if there are
// slots. `following`: the caller's next `in`, if known; it is only prefetched.
void apply(const Settings& settings, const Moment& moment, float* out, const float* in, std::size_t stride,
           const float* gradient, float scale, std::size_t count, const float* following = nullptr) noexcept;

// One contributor's gradient of a sync step, and its factor (clip_scale).
struct Contribution {
  const float* gradient = nullptr;
  float scale = 1.0F;
};

// The same with the gradients of several contributors, each clipped individually, summed in the given order: rank order
// makes sync mode deterministic. Optimizers take the mean, a rule that is a sum takes the sum. Requires: a contributor.
void apply_combined(const Settings& settings, const Moment& moment, float* out, const float* in, std::size_t stride,
                    std::span<const Contribution> contributions, std::size_t count,
                    const float* following = nullptr) noexcept;

// out = in + clip(scale * gradient), or only the latter if `in` is nullptr: fills an accumulator.
void accumulate(float* out, const float* in, const float* gradient, float scale, float clip_value,
                std::size_t count) noexcept;

// How an update changes values. The numbers are stored in gradient segments.
enum class Change : std::uint64_t {
  kStep = 0,    // by the rule, with a gradient
  kAdd = 1,     // bypassing the rule: a delta is added; state stays unchanged
  kAssign = 2,  // bypassing the rule: the values are replaced; state stays unchanged
  kReset = 3,   // the same, and state gets the initial values for these values
};

// out = in, changed bypassing the rule. If a value is a function of state (ftrl), the state is solved for; kAssign also
// sets the average. `out` may be `in`, else they do not overlap. Slots lie as for apply(). `values` are of the dtype.
// Requires: not kStep; not kAdd for bfloat16, which has no sum.
void change(const Settings& settings, Change how, float lr, float* out, const float* in, std::size_t stride,
            const float* values, std::size_t count) noexcept;

// out = in + delta, for elements of that dtype that occupy `count` floats. `out` may be `in`. Requires: has_sum(dtype).
void add_elements(DType dtype, float* out, const float* in, const float* delta, std::size_t count) noexcept;

// Sum of squares, in float64 and in an order that depends on `count` alone.
double squared_norm(const float* values, std::size_t count) noexcept;

// The factor for a gradient of that global norm: clip_norm / max(norm, clip_norm), as TensorFlow's clip_by_global_norm;
// 1 if clip_norm is 0.
float clip_scale(double squared_norm, float clip_norm) noexcept;

}  // namespace ps_shm::update
