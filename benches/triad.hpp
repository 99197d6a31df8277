// What an update would cost if arithmetic were free: the limit that stands beside figures of pushes and rules.
#pragma once

#include <cstddef>

namespace ps_shm::bench {

// out = in + s * gradient in each of `arrays` (1 to 4) streams, the next one `stride` floats behind.
void triad(std::size_t arrays, float* out, const float* in, std::size_t stride, const float* gradient,
           std::size_t count, float s) noexcept;

// The same, asking for its inputs ahead as the rules do: the faster one in main memory, the slower one in caches.
void asking_triad(std::size_t arrays, float* out, const float* in, std::size_t stride, const float* gradient,
                  std::size_t count, float s) noexcept;

// The same with stores past the caches, which reads no line only to overwrite it: the fastest one for arrays larger than
// the caches. Requires: one array; pointers of 64 bytes' alignment (else, and on other processors than x86-64: triad).
void streaming_triad(float* out, const float* in, const float* gradient, std::size_t count, float s) noexcept;

}  // namespace ps_shm::bench
