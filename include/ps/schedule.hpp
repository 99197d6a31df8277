// Learning-rate schedules: a factor on the base rate as a function of the global step.
#pragma once

#include <cstdint>
#include <string>

#include "ps/export.hpp"

namespace PS_API ps {

// What the text of a schedule means; t is the global step, all of them are 1 at step 0 but for the warm-up's.
//   constant               1
//   exp:DECAY:STEPS        DECAY ^ (t / STEPS), continuous (TensorFlow's exponential_decay with staircase=False)
//   step:DECAY:STEPS       DECAY ^ floor(t / STEPS) (the same with staircase=True)
//   cosine:STEPS[:FLOOR]   FLOOR + (1 - FLOOR) * (1 + cos(pi * min(t, STEPS) / STEPS)) / 2; FLOOR is 0
//                          (Loshchilov and Hutter, SGDR, 2017, without restarts)
//   warmup:STEPS+SCHEDULE  (t + 1) / STEPS for the first STEPS steps, then SCHEDULE counted from there
//                          (Goyal et al., Accurate, Large Minibatch SGD, 2017)
struct Schedule {
  enum class Kind : std::uint32_t { kConstant = 1, kExponential = 2, kStep = 3, kCosine = 4 };
  Kind kind = Kind::kConstant;
  float decay = 1.0F;  // cosine: the floor
  float decay_steps = 1.0F;
  float warmup_steps = 0.0F;

  // Throws Error naming the part that cannot be read.
  static Schedule parse(const std::string& text);
  std::string to_string() const;  // that parse() reads back

  // Whether the factor is always 1.
  bool is_constant() const noexcept { return kind == Kind::kConstant && warmup_steps == 0; }

  // The factor at `step`, the same bits on every caller of one build.
  float factor(std::uint64_t step) const noexcept;

  // The rate at `step`, where `base` is that of step 0 without a warm-up.
  float rate(float base, std::uint64_t step) const noexcept { return is_constant() ? base : base * factor(step); }

  bool operator==(const Schedule&) const = default;
};

}  // namespace ps
