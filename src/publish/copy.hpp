// Copies of tensors into a generation and out of it.
#pragma once

#include <cstddef>

namespace ps_shm {

// Copies a tensor, or a part of it, of a generation of `generation_bytes`. If the generation exceeds the caches, a large
// part is copied around them: non-temporal stores do not read the lines that they write, and leave the caches to others.
// For a part whose other end is read soon from a cache, memcpy is better.
void copy_tensor(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t generation_bytes) noexcept;

// Rounds `count` floats to bfloat16, to nearest, ties to even; NaN stays NaN. `to` is 2-byte aligned.
void round_to_bfloat16(std::byte* to, const float* from, std::size_t count) noexcept;

}  // namespace ps_shm
