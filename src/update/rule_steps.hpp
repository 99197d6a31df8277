// The arithmetic of one element under each update rule (formulas and sources: rules.hpp), for who loops over elements.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "update/rules.hpp"

namespace ps::update {

// What the elements of one call have in common.
struct Call {
  Settings settings;
  float rate = 0.0F;
  float scale = 1.0F;
  float limit = std::numeric_limits<float>::infinity();  // of a gradient's element
  float l2 = 0.0F;                                       // what is added to the gradient
  float decay = 0.0F;                                    // share of the value that is lost
  float epsilon = 0.0F;
  float inverse_rate = 0.0F;  // ftrl
  float kept = 0.0F;          // d of the moving average; 0: there is none
  float taken = 0.0F;         // 1 - d, of which no digits are lost

  bool is_plain() const noexcept {
    return scale == 1.0F && limit == std::numeric_limits<float>::infinity() && l2 == 0.0F && decay == 0.0F;
  }
};

inline Call resolve(const Settings& settings, const Moment& moment, float scale, float clip_value) noexcept {
  Call call{.settings = settings, .rate = moment.learning_rate, .scale = scale, .epsilon = settings.epsilon};
  if (settings.rule == UpdateRule::kAdd) return call;
  if (clip_value > 0) call.limit = clip_value;
  const double t = double(moment.updates) + 1;
  if (settings.rule == UpdateRule::kFtrl) {
    call.inverse_rate = 1.0F / moment.learning_rate;
  } else {
    call.l2 = settings.l2;
    call.decay = moment.learning_rate * settings.weight_decay;
  }
  if (settings.rule == UpdateRule::kAdam || settings.rule == UpdateRule::kAdamW) {
    const double root = std::sqrt(1 - std::pow(double(settings.beta2), t));
    call.rate = static_cast<float>(double(moment.learning_rate) * root / (1 - std::pow(double(settings.beta1), t)));
    call.epsilon = static_cast<float>(double(settings.epsilon) * root);
  }
  if (settings.ema > 0) {
    const double d = std::min(double(settings.ema), (1 + t) / (10 + t));
    call.kept = static_cast<float>(d);
    call.taken = static_cast<float>(1 - d);
  }
  return call;
}

// Asks for a line that will be read and then written: the buffer that an update replaces is the next one to fill. One
// request for both instead of two saves a trip between the cores where others have written it (pushes of 400 KB by two
// writers: 1.2 times the rate). Processors without the instruction take it for none.
[[gnu::always_inline]] inline void prefetch_to_own(const float* line) noexcept {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" ::"m"(*line));
#else
  __builtin_prefetch(line, 1);
#endif
}

// Two selections, not one nested: compilers make a minimum and a maximum of them. Both let NaN pass.
[[gnu::always_inline]] inline float clip(float g, float limit) noexcept {
  g = g < -limit ? -limit : g;
  return g > limit ? limit : g;
}

// The rules. x[0] is the element's value, x[1] and so on are its slots, w and g are w' and g' of the header.

struct Add {
  static constexpr std::size_t kSlots = 0;
  [[gnu::always_inline]] static void step(const Call& call, float* x, float, float g) noexcept {
    x[0] += call.scale * g;
  }
};

struct Sgd {
  static constexpr std::size_t kSlots = 0;
  [[gnu::always_inline]] static void step(const Call& call, float* x, float w, float g) noexcept {
    x[0] = w - call.rate * g;
  }
};

struct Momentum {
  static constexpr std::size_t kSlots = 1;
  [[gnu::always_inline]] static void step(const Call& call, float* x, float w, float g) noexcept {
    x[1] = call.settings.momentum * x[1] + g;
    x[0] = w - call.rate * x[1];
  }
};

struct Nesterov {
  static constexpr std::size_t kSlots = 1;
  [[gnu::always_inline]] static void step(const Call& call, float* x, float w, float g) noexcept {
    x[1] = call.settings.momentum * x[1] + g;
    x[0] = w - call.rate * (g + call.settings.momentum * x[1]);
  }
};

struct Adagrad {
  static constexpr std::size_t kSlots = 1;
  [[gnu::always_inline]] static void step(const Call& call, float* x, float w, float g) noexcept {
    x[1] += g * g;
    x[0] = w - call.rate * g / (std::sqrt(x[1]) + call.epsilon);
  }
};

struct RmsProp {
  static constexpr std::size_t kSlots = 1;
  [[gnu::always_inline]] static void step(const Call& call, float* x, float w, float g) noexcept {
    x[1] = call.settings.rho * x[1] + (1 - call.settings.rho) * (g * g);
    x[0] = w - call.rate * g / (std::sqrt(x[1]) + call.epsilon);
  }
};

struct Adam {
  static constexpr std::size_t kSlots = 2;
  [[gnu::always_inline]] static void step(const Call& call, float* x, float w, float g) noexcept {
    x[1] = call.settings.beta1 * x[1] + (1 - call.settings.beta1) * g;
    x[2] = call.settings.beta2 * x[2] + (1 - call.settings.beta2) * (g * g);
    x[0] = w - call.rate * x[1] / (std::sqrt(x[2]) + call.epsilon);  // both already corrected for the bias
  }
};

struct Ftrl {
  static constexpr std::size_t kSlots = 2;
  [[gnu::always_inline]] static void step(const Call& call, float* x, float w, float g) noexcept {
    const float n = x[1] + g * g, root = std::sqrt(n);
    const float denominator = (call.settings.ftrl_beta + root) * call.inverse_rate + call.settings.l2;
    // No branch, so that it vectorises. Where w is not 0, the closed form of the step before gives sum(s * w) from w.
    const float l1 = call.settings.l1, moved = std::copysign(l1, x[2]) - denominator * w;
    const float z = g + (std::fabs(x[2]) > l1 ? moved : x[2]);
    // What is left of |z| above l1 is 0 where the value has to be, and the denominator is kept from 0 / 0 there.
    const float left = std::fabs(z) - l1;
    constexpr float kLeast = std::numeric_limits<float>::min();
    x[0] = std::copysign(left < 0 ? 0 : left, -z) / (denominator < kLeast ? kLeast : denominator);
    x[1] = n;
    x[2] = z;
  }
};

}  // namespace ps::update
