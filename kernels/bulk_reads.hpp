// Reads of mapped host memory by bulk copies (bulk_reads.cu), which benches/gpu compares with the other ways. `stream` is
// a cudaStream_t; both return cudaError_t's number.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ps_shm::kernels {

struct BulkReads {
  std::uint32_t blocks;       // at most; each has one thread
  std::uint32_t piece_bytes;  // of one copy
  std::uint32_t ring_bytes;   // of shared memory in each block, for at least two pieces
};

// How large a ring may be on the current device. cudaErrorNotSupported: it has no bulk copies. Call it before bulk_read().
int bulk_read_max_ring(std::uint32_t& ring_bytes) noexcept;

// Enqueues: copies the bytes to device memory. All addresses and sizes must be multiples of 16.
int bulk_read(const std::byte* from, std::byte* to, std::size_t bytes, const BulkReads& how, void* stream) noexcept;

}  // namespace ps_shm::kernels
