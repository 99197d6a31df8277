// The transfers of values and gradients between a GPU and the segments: the kernels of kernels/, behind a table that
// tests replace.
//
// All calls only enqueue work, in stream order, and return the number of a cudaError_t. Pointers are device pointers
// unless stated otherwise. Results do not depend on timing: only add_pieces uses atomic adds. Empty lists are allowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "device/cuda_calls.hpp"
#include "kernels/rows.hpp"
#include "kernels/transfers.hpp"

namespace ps_shm::device {

class TransferKernels {
 public:
  virtual ~TransferKernels() = default;

  // Loads all kernels on the current device. Otherwise CUDA would load each at its first launch, which may wait for all
  // work in progress on the device: for ever, if a stream waits for a word that the launching thread stores later.
  virtual CudaError load() = 0;

  // The lists and `results` or `arrived` are in mapped host memory or on the device.

  // Copies each chunk or block to its `out`, then stores its result (transfers.hpp), released to the system.
  virtual CudaError pull_pieces(const kernels::PulledPiece* pieces, std::uint32_t count, std::uint64_t* results,
                                kernels::ChunkFormat format, Stream stream) = 0;
  // Copies each chunk to its `to`, if requested rounded to bfloat16 (to nearest, ties to even; NaN stays NaN), by at
  // most `senders` blocks, each of which sends every so many-th chunk, in the order of the list. After each chunk, stores
  // 1 to arrived[i], released to the system. Does nothing if there is a `gate` (not nullptr) that is cancelled by then
  // (kGateCancelled).
  virtual CudaError send_pieces(const kernels::SentPiece* pieces, std::uint32_t count, std::uint32_t* arrived,
                                bool as_bfloat16, const std::uint32_t* gate, std::uint32_t senders, Stream stream) = 0;
  // to[i] += scale * clip(from[i]) by one atomic add of system scope per element; clip: to +-clip_value if that is
  // above 0. `wide`: four elements at a time, if the device can. Requires: the device has native atomics on host
  // memory.
  virtual CudaError add_pieces(const kernels::AddedPiece* pieces, std::uint32_t count, float scale, float clip_value,
                               bool wide, Stream stream) = 0;

  // Rows (rows.hpp). `outside`, in mapped host memory, receives an id that is out of range, if there is one.

  // Row i of `out` = the values of row ids[i], each element untorn. Rows out of range are not read.
  virtual CudaError pull_rows(const kernels::RowTable& table, const kernels::RowIds& ids, float* out,
                              std::uint64_t* outside, Stream stream) = 0;
  // Row i of `out` = the values of key i's row, or its initial values if it has none; found[i] (may be nullptr) says which.
  // Nothing is written for keys that only the CPU can decide: their places[i].row is kUndecidedRow, and then `undecided`,
  // in mapped host memory, receives 1. The lists are on the device.
  virtual CudaError pull_keys(const kernels::KeyTable& table, const kernels::RowIds& keys, float* out, bool* found,
                              kernels::KeyPlace* places, std::uint64_t* undecided, Stream stream) = 0;
  // Row places[i] of `out` = row i of the values; found[places[i]] (may be nullptr) = found[i]. All is on the device.
  virtual CudaError put_rows(const kernels::DecidedRows& rows, float* out, bool* found, Stream stream) = 0;
  // The number of bytes of RowSort::temp_storage that are needed for up to `most` rows. Enqueues nothing.
  virtual CudaError sort_rows_temp_bytes(std::uint64_t most, std::size_t& bytes) = 0;
  // Sorts the ids, of a table of `rows` rows, and finds the distinct ones. 0 rows: the ids are keys, any of 64 bits.
  virtual CudaError sort_rows(const kernels::RowIds& ids, std::uint64_t rows, const kernels::RowSort& to,
                              std::uint64_t* outside, Stream stream) = 0;
  // Takes the `count` ids of sort_rows and stores the distinct ones to `ids` and the sums of their gradients, of
  // `elements` floats each, to `sums`, both in mapped host memory, `piece_rows` rows at a time. After each piece i,
  // stores arrived[i] = 1 + its number of rows, released to the system, for all pieces that `count` rows could have.
  // The order of a sum depends only on the push.
  virtual CudaError send_rows(const kernels::RowSort& rows, std::uint64_t count, const float* gradients,
                              std::uint32_t elements, std::uint32_t piece_rows, std::uint64_t* ids, float* sums,
                              std::uint32_t* arrived, Stream stream) = 0;
};

// The real kernels. In a build without CUDA every call returns kInsufficientDriver.
TransferKernels& transfer_kernels();

}  // namespace ps_shm::device
