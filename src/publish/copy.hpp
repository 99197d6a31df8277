// Writing tensors into a generation, and copying them out of it.
#pragma once

#include <cstddef>

#include "ps_shm/bundle_spec.hpp"

namespace ps_shm {

// Checks that so many bytes from byte `begin` on, or floats from element `begin` on, can be written to the tensor. Throws
// Error.
void require_bytes(const TensorSpec& tensor, std::size_t bytes, std::size_t begin);
void require_floats(const TensorSpec& tensor, std::size_t count, std::size_t begin);

// Copies a tensor, or a part of it, of a generation of `generation_bytes`. If the generation exceeds the caches, a large
// part is copied around them. For a part whose other end is read soon from a cache, memcpy is better.
void copy_tensor(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t generation_bytes) noexcept;

}  // namespace ps_shm
