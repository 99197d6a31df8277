#include "shm/base/streaming.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ps_shm::shm {

#if defined(__SSE2__)
namespace {

constexpr std::size_t kLineBytes = 64, kPageBytes = 4096;
constexpr std::size_t kPagesAtOnce = 4;  // copied side by side: several rows of memory are open at once

void stream_line(std::byte* to, const std::byte* from) noexcept {
  auto* out = reinterpret_cast<__m128i*>(to);
  const auto* in = reinterpret_cast<const __m128i*>(from);
  const __m128i words[] = {_mm_loadu_si128(in), _mm_loadu_si128(in + 1), _mm_loadu_si128(in + 2),
                           _mm_loadu_si128(in + 3)};
  for (int i = 0; i < 4; ++i) _mm_stream_si128(out + i, words[i]);
}

}  // namespace

void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  const std::size_t head = std::min(-reinterpret_cast<std::uintptr_t>(to) % kLineBytes, bytes);
  std::memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  for (; bytes >= kPagesAtOnce * kPageBytes;
       to += kPagesAtOnce * kPageBytes, from += kPagesAtOnce * kPageBytes, bytes -= kPagesAtOnce * kPageBytes)
    for (std::size_t line = 0; line < kPageBytes; line += kLineBytes)
      for (std::size_t page = 0; page < kPagesAtOnce; ++page)
        stream_line(to + page * kPageBytes + line, from + page * kPageBytes + line);
  for (; bytes >= kLineBytes; to += kLineBytes, from += kLineBytes, bytes -= kLineBytes) stream_line(to, from);
  std::memcpy(to, from, bytes);
  _mm_sfence();  // a later release store does not order non-temporal stores
}
#else
void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept { std::memcpy(to, from, bytes); }
#endif

}  // namespace ps_shm::shm
