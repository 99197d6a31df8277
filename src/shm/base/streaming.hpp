// Copies around the caches, of data that would not stay in them until it is used.
#pragma once

#include <cstddef>

namespace ps_shm::shm {

// As memcpy. Where the processor has them (x86-64), non-temporal stores do not read the lines that they fill, and leave
// the caches to other data. What synchronises with this thread afterwards covers these stores, too.
void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept;

}  // namespace ps_shm::shm
