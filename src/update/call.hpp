// What the elements of one call have in common, and what their loops share.
#pragma once

#include <limits>

#include "update/rules.hpp"

namespace ps::update {

struct Call {
  Settings settings;
  float rate = 0.0F;
  float scale = 1.0F;
  float limit = std::numeric_limits<float>::infinity();  // of a gradient's element
  float l2 = 0.0F;                                       // what is added to the gradient
  float decay = 0.0F;                                    // share of the value that is lost
  float epsilon = 0.0F;
  float inverse_rate = 0.0F;  // of rules that divide by the rate
  float kept = 0.0F;          // d of the moving average; 0: there is none
  float taken = 0.0F;         // 1 - d, of which no digits are lost
  bool has_t = false;         // some of these depend on t (rule_table.hpp), and stand for no update yet

  bool is_plain() const noexcept {
    return scale == 1.0F && limit == std::numeric_limits<float>::infinity() && l2 == 0.0F && decay == 0.0F;
  }
};

// What updates at that rate, of gradients that are scaled so, have in common: made once, it serves any number of chunks.
Call resolve(const Settings& settings, float learning_rate, float scale) noexcept;

// apply() of rules.hpp, by a call of resolve(). `updates`: of this chunk before this one.
void apply(const Call& call, std::uint64_t updates, float* out, const float* in, std::size_t stride,
           const float* gradient, std::size_t count, const float* following = nullptr) noexcept;

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

}  // namespace ps::update
