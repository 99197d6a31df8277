// What the elements of one call have in common, and helpers of the loops over them.
#pragma once

#include <limits>

#include "shm/base/undo_log.hpp"
#include "update/rules.hpp"

namespace ps_shm::update {

struct Call {
  Settings settings;
  float rate = 0.0F;
  float scale = 1.0F;
  float limit = std::numeric_limits<float>::infinity();  // limit for each element of a gradient
  float l2 = 0.0F;                                       // multiple of the value that is added to the gradient
  float decay = 0.0F;                                    // fraction of the value that decays
  float epsilon = 0.0F;
  float inverse_rate = 0.0F;  // for rules that divide by the rate
  float kept = 0.0F;          // d of the moving average; 0: there is none
  float taken = 0.0F;         // 1 - d, computed without loss of digits
  std::uint64_t rounding = 0;  // rounding_key(), for bfloat16
  bool has_t = false;          // some of these depend on t (rule_table.hpp), and are not yet set for an update

  bool is_plain() const noexcept {
    return scale == 1.0F && limit == std::numeric_limits<float>::infinity() && l2 == 0.0F && decay == 0.0F;
  }
};

// What updates with this rate and gradient scale have in common. Computed once, it can be used for any number of
// chunks.
Call resolve(const Settings& settings, float lr, float scale) noexcept;

// apply() of rules.hpp, with the result of resolve(). `updates`, `first`: as in Moment.
void apply(const Call& call, std::uint64_t updates, std::uint64_t first, float* out, const float* in,
           std::size_t stride, const float* gradient, std::size_t count, const float* following = nullptr) noexcept;

// The same with values = rule(values, gradient), and with the old floats of the block under way in `log`. Requires:
// can_apply_in_place(call.settings).
void apply_in_place(const Call& call, std::uint64_t updates, float* values, std::size_t stride, const float* gradient,
                    std::size_t count, const float* following, const shm::UndoLog& log) noexcept;
inline bool can_apply_in_place(const Settings& settings) noexcept {
  return settings.dtype == DType::kFloat32 && settings.ema == 0;
}

// Prefetches a cache line that will be read and then written: the buffer that an update replaces is the next one to be
// filled. One request for both instead of two saves a transfer between cores if another core has written the line
// (pushes of 400 KB by two writers: 1.2 times the rate). Processors without the instruction treat it as a no-op.
[[gnu::always_inline]] inline void prefetch_to_own(const void* line) noexcept {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" ::"m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

// Two selections instead of a nested one: compilers turn them into a minimum and a maximum. Both pass NaN through.
[[gnu::always_inline]] inline float clip(float g, float limit) noexcept {
  g = g < -limit ? -limit : g;
  return g > limit ? limit : g;
}

}  // namespace ps_shm::update
