/// @file
/// Learning-rate schedules: a factor on the base learning rate as a function of the global step.
#pragma once

#include <cstdint>
#include <string>

#include "ps_shm/export.hpp"
#include "ps_shm/types.hpp"

namespace PS_SHM_API ps_shm {

/// A schedule is written as one of the following texts. t is the global step. At step 0 every factor is 1, except
/// during a warm-up.
/// @code{.unparsed}
///   constant               1
///   exp:DECAY:STEPS        DECAY ^ (t / STEPS), continuous (TensorFlow's exponential_decay with staircase=False)
///   step:DECAY:STEPS       DECAY ^ floor(t / STEPS) (TensorFlow's exponential_decay with staircase=True)
///   cosine:STEPS[:FLOOR]   FLOOR + (1 - FLOOR) * (1 + cos(pi * min(t, STEPS) / STEPS)) / 2; FLOOR is 0 by default
///                          (Loshchilov and Hutter, SGDR, 2017, without restarts)
///   warmup:STEPS+SCHEDULE  (t + 1) / STEPS for the first STEPS steps, then SCHEDULE, whose t counts from there
///                          (Goyal et al., Accurate, Large Minibatch SGD, 2017)
/// @endcode
struct Schedule {
  /// The forms above, without the warm-up.
  enum class Kind : std::uint32_t {
    kConstant = 1,     ///< constant
    kExponential = 2,  ///< exp
    kStep = 3,         ///< step
    kCosine = 4        ///< cosine
  };
  Kind kind = Kind::kConstant;  ///< the form
  float decay = 1.0F;           ///< DECAY; for cosine: FLOOR
  float decay_steps = 1.0F;     ///< STEPS
  float warmup_steps = 0.0F;    ///< STEPS of the warm-up; 0: no warm-up

  /// Reads a schedule from its text.
  ///
  /// @throws Error (kInvalidArgument), which names the part that cannot be read.
  static Schedule parse(const std::string& text);

  /// The text of this schedule, which parse() reads back.
  ///
  /// @throws std::bad_alloc.
  std::string to_string() const;

  /// Whether the factor is 1 at every step.
  bool is_constant() const noexcept { return kind == Kind::kConstant && warmup_steps == 0; }

  /// The factor at `step`. All callers of one build get the same bits.
  float factor(std::uint64_t step) const noexcept;

  /// The learning rate at `step`; `base` is the rate at step 0 without a warm-up.
  float rate(float base, std::uint64_t step) const noexcept { return is_constant() ? base : base * factor(step); }

  bool operator==(const Schedule&) const = default;
};

/// The name of a form, such as "cosine".
/// @progress wait-free.
PS_SHM_API const char* to_string(Schedule::Kind kind) noexcept;

}  // namespace ps_shm
