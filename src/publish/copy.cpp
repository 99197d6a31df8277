#include "publish/copy.hpp"

#include <bit>
#include <cstdint>
#include <cstring>

#include "update/simd.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ps_shm {
namespace {

constexpr std::size_t kLargeGeneration = 32 << 20, kLargePart = 64 << 10;  // measured by benches/publication

#if defined(__SSE2__)
constexpr std::size_t kLine = 64, kPage = 4096;
constexpr std::size_t kPages = 4;  // copied side by side: several rows of memory are open at once

void stream_line(std::byte* to, const std::byte* from) noexcept {
  auto* out = reinterpret_cast<__m128i*>(to);
  const auto* in = reinterpret_cast<const __m128i*>(from);
  const __m128i words[] = {_mm_loadu_si128(in), _mm_loadu_si128(in + 1), _mm_loadu_si128(in + 2),
                           _mm_loadu_si128(in + 3)};
  for (int i = 0; i < 4; ++i) _mm_stream_si128(out + i, words[i]);
}

void stream(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(to) % kLine;
  std::memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  for (; bytes >= kPages * kPage; to += kPages * kPage, from += kPages * kPage, bytes -= kPages * kPage)
    for (std::size_t line = 0; line < kPage; line += kLine)
      for (std::size_t page = 0; page < kPages; ++page)
        stream_line(to + page * kPage + line, from + page * kPage + line);
  for (; bytes >= kLine; to += kLine, from += kLine, bytes -= kLine) stream_line(to, from);
  std::memcpy(to, from, bytes);
  _mm_sfence();  // a later release store does not order non-temporal stores
}
#endif

PS_SHM_SIMD_CLONES void round_all(std::uint16_t* to, const float* from, std::size_t count) noexcept {
  PS_SHM_SIMD_LOOP
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(from[i]);
    const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet_nan = bits >> 16 | 0x40;
    to[i] = static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
  }
}

}  // namespace

void copy_tensor(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t generation_bytes) noexcept {
#if defined(__SSE2__)
  if (generation_bytes >= kLargeGeneration && bytes >= kLargePart) return stream(to, from, bytes);
#endif
  std::memcpy(to, from, bytes);
}

void round_to_bfloat16(std::byte* to, const float* from, std::size_t count) noexcept {
  round_all(reinterpret_cast<std::uint16_t*>(to), from, count);
}

}  // namespace ps_shm
