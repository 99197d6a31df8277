// Update rules: pure arithmetic on arrays, run by whoever pushes. Knows no segment.
//
// Every function is element-wise and free of contraction (-ffp-contract=off), so its bits do not depend on the vector
// width that the processor offers, nor on who computes it (sync mode helps itself to that). All are wait-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ps/job_config.hpp"

namespace ps::update {

// What a rule needs beside the gradient, for one global step.
struct Hyper {
  float learning_rate = 0.0F;
  float l2 = 0.0F;  // 0 for variables that are not regularised
};

// Optimizer slots (TensorFlow's word: momentum, Adam's m and v) per element.
std::size_t slots_per_element(UpdateRule rule) noexcept;

// out = rule(in, gradient) over `count` elements; slot arrays, if the rule has any, follow at `out + stride` and so on.
//   add  out = in + gradient
//   sgd  out = in - lr * (gradient + l2 * in)     Robbins, Monro 1951; L2 as its gradient's term
// Requires: `out` does not overlap the others.
void apply(UpdateRule rule, float* out, const float* in, const float* gradient, std::size_t count,
           const Hyper& hyper) noexcept;

// The same with the gradients of several contributors, summed in the order given: rank order makes sync mode
// deterministic. Optimizers take the mean, `add` takes the sum. Requires: at least one contributor.
void apply_combined(UpdateRule rule, float* out, const float* in, std::span<const float* const> gradients,
                    std::size_t count, const Hyper& hyper) noexcept;

// One element, for layouts that update where the elements lie. Only rules without slots have such a form.
inline float add_one(float value, float delta) noexcept { return value + delta; }
inline float sgd_one(float value, float gradient, const Hyper& hyper) noexcept {
  return value - hyper.learning_rate * (gradient + hyper.l2 * value);
}

}  // namespace ps::update
