#include "update/rules.hpp"

#include <algorithm>

// One source, several widths, chosen once when the library is loaded. Sanitizers run before the choice could be made.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define PS_SIMD_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define PS_SIMD_CLONES
#endif

namespace ps::update {
namespace {

// out[i] = element(in[i], gradient[i]). Asks for both inputs half a page ahead: the processor's own prefetching stops at
// page ends, and neighbouring chunks' buffers lie anywhere (pushes of 4 MiB by two writers: 0.92 to 0.96 of racy adds).
template <class Element>
[[gnu::always_inline]] inline void for_each(float* __restrict out, const float* __restrict in,
                                            const float* __restrict gradient, std::size_t count,
                                            Element element) noexcept {
  constexpr std::size_t kBlock = 64, kLine = 16, kAhead = 512;  // floats
  std::size_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    for (std::size_t k = 0; k < kBlock; k += kLine) {
      __builtin_prefetch(in + i + k + kAhead);
      __builtin_prefetch(gradient + i + k + kAhead);
    }
    for (std::size_t k = 0; k < kBlock; ++k) out[i + k] = element(in[i + k], gradient[i + k]);
  }
  for (; i < count; ++i) out[i] = element(in[i], gradient[i]);
}

PS_SIMD_CLONES void add(float* __restrict out, const float* __restrict in, const float* __restrict gradient,
                        std::size_t count) noexcept {
  for_each(out, in, gradient, count, [](float value, float delta) { return value + delta; });
}

PS_SIMD_CLONES void sgd(float* __restrict out, const float* __restrict in, const float* __restrict gradient,
                        std::size_t count, float rate) noexcept {
  for_each(out, in, gradient, count, [rate](float value, float g) { return value - rate * g; });
}

PS_SIMD_CLONES void sgd_l2(float* __restrict out, const float* __restrict in, const float* __restrict gradient,
                           std::size_t count, float rate, float l2) noexcept {
  for_each(out, in, gradient, count, [rate, l2](float value, float g) { return value - rate * (g + l2 * value); });
}

PS_SIMD_CLONES void accumulate(float* __restrict sum, const float* __restrict gradient, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) sum[i] += gradient[i];
}

PS_SIMD_CLONES void scale(float* __restrict values, std::size_t count, float factor) noexcept {
  for (std::size_t i = 0; i < count; ++i) values[i] *= factor;
}

}  // namespace

std::size_t slots_per_element(UpdateRule) noexcept { return 0; }

void apply(UpdateRule rule, float* out, const float* in, const float* gradient, std::size_t count,
           const Hyper& hyper) noexcept {
  if (rule == UpdateRule::kAdd)
    add(out, in, gradient, count);
  else if (hyper.l2 == 0.0F)
    sgd(out, in, gradient, count, hyper.learning_rate);
  else
    sgd_l2(out, in, gradient, count, hyper.learning_rate, hyper.l2);
}

void apply_combined(UpdateRule rule, float* out, const float* in, std::span<const float* const> gradients,
                    std::size_t count, const Hyper& hyper) noexcept {
  if (gradients.size() == 1) return apply(rule, out, in, gradients[0], count, hyper);
  constexpr std::size_t kBlock = 1024;  // 4 KiB of sums stay in the first-level cache
  float sum[kBlock];
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t n = std::min(kBlock, count - at);
    add(sum, gradients[0] + at, gradients[1] + at, n);
    for (std::size_t k = 2; k < gradients.size(); ++k) accumulate(sum, gradients[k] + at, n);
    if (rule != UpdateRule::kAdd) scale(sum, n, 1.0F / static_cast<float>(gradients.size()));
    apply(rule, out + at, in + at, sum, n, hyper);
  }
}

}  // namespace ps::update
