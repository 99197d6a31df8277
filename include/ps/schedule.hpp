// Learning-rate schedules: a factor on the base rate as a function of the global step.
#pragma once

#include <cstdint>
#include <string>

namespace ps {

// `constant`, or `exp:DECAY:STEPS`: rate * DECAY ^ (step / STEPS), continuous, as TensorFlow's exponential_decay with
// staircase=False (tf.train.exponential_decay: decayed_rate = rate * decay_rate ^ (global_step / decay_steps)).
struct Schedule {
  enum class Kind : std::uint32_t { kConstant = 1, kExponential = 2 };
  Kind kind = Kind::kConstant;
  float decay = 1.0F;
  float decay_steps = 1.0F;

  // Throws Error naming the part that cannot be read.
  static Schedule parse(const std::string& text);
  std::string to_string() const;

  // The factor at `step`, the same bits on every caller of one build.
  float factor(std::uint64_t step) const noexcept;
};

}  // namespace ps
