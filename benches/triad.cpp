#include "triad.hpp"

#include <cstdint>

#include "update/simd.hpp"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ps_shm::bench {
namespace {

// out = in + s * gradient in each of kArrays streams: what the rules would cost if arithmetic were free. With kAsks it
// asks for its inputs ahead as the rules do: that is the faster one in main memory, the slower one in caches.
template <std::size_t kArrays, bool kAsks>
[[gnu::always_inline]] inline void one_pass(float* out, const float* in, std::size_t stride, const float* gradient,
                                            std::size_t count, float s) noexcept {
  constexpr std::size_t kBlock = 64, kLine = 16, kAhead = 512;  // floats
  std::size_t i = 0;
  for (; kAsks && i + kBlock <= count; i += kBlock) {
    for (std::size_t line = i + kAhead; line < i + kAhead + kBlock; line += kLine) {
      for (std::size_t k = 0; k < kArrays; ++k) __builtin_prefetch(in + k * stride + line);
      __builtin_prefetch(gradient + line);
    }
    PS_SHM_SIMD_LOOP
    for (std::size_t j = i; j < i + kBlock; ++j)
      for (std::size_t k = 0; k < kArrays; ++k) out[k * stride + j] = in[k * stride + j] + s * gradient[j];
  }
  PS_SHM_SIMD_LOOP
  for (std::size_t j = i; j < count; ++j)
    for (std::size_t k = 0; k < kArrays; ++k) out[k * stride + j] = in[k * stride + j] + s * gradient[j];
}

template <bool kAsks>
[[gnu::always_inline]] inline void triads(std::size_t arrays, float* out, const float* in, std::size_t stride,
                                          const float* gradient, std::size_t count, float s) noexcept {
  switch (arrays) {
    case 1:
      return one_pass<1, kAsks>(out, in, stride, gradient, count, s);
    case 2:
      return one_pass<2, kAsks>(out, in, stride, gradient, count, s);
    case 3:
      return one_pass<3, kAsks>(out, in, stride, gradient, count, s);
    case 4:
      return one_pass<4, kAsks>(out, in, stride, gradient, count, s);
  }
}
}  // namespace

PS_SHM_SIMD_CLONES void triad(std::size_t arrays, float* out, const float* in, std::size_t stride,
                              const float* gradient, std::size_t count, float s) noexcept {
  triads<false>(arrays, out, in, stride, gradient, count, s);
}
PS_SHM_SIMD_CLONES void asking_triad(std::size_t arrays, float* out, const float* in, std::size_t stride,
                                     const float* gradient, std::size_t count, float s) noexcept {
  triads<true>(arrays, out, in, stride, gradient, count, s);
}

void streaming_triad(float* out, const float* in, const float* gradient, std::size_t count, float s) noexcept {
#if defined(__x86_64__)
  constexpr std::size_t kLine = 16, kAhead = 512;  // floats
  const bool is_aligned = (reinterpret_cast<std::uintptr_t>(out) | reinterpret_cast<std::uintptr_t>(in) |
                           reinterpret_cast<std::uintptr_t>(gradient)) %
                              64 ==
                          0;
  if (!is_aligned) return triad(1, out, in, count, gradient, count, s);
  const __m128 factor = _mm_set1_ps(s);
  std::size_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    __builtin_prefetch(in + i + kAhead);
    __builtin_prefetch(gradient + i + kAhead);
    for (std::size_t j = i; j < i + kLine; j += 4)
      _mm_stream_ps(out + j, _mm_add_ps(_mm_load_ps(in + j), _mm_mul_ps(factor, _mm_load_ps(gradient + j))));
  }
  _mm_sfence();
  for (; i < count; ++i) out[i] = in[i] + s * gradient[i];
#else
  triad(1, out, in, count, gradient, count, s);
#endif
}

}  // namespace ps_shm::bench
