// What moves values and gradients between a GPU and the segments: the transfers of kernels/, behind a table that tests
// replace.
//
// All calls only enqueue, in stream order, and return cudaError_t's number; pointers are the device's unless said
// otherwise. Results do not depend on timing: no atomic adds but in add_pieces. Zero rows or pieces are allowed and do
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "device/cuda_calls.hpp"
#include "kernels/rows.hpp"
#include "kernels/transfers.hpp"

namespace ps::device {

class TransferKernels {
 public:
  virtual ~TransferKernels() = default;

  // Loads all kernels, on the current device. CUDA would load each when it is first launched, which may wait for all
  // that the device has under way: for ever, where a stream waits for a word that the launching thread stores later.
  virtual CudaError load() = 0;

  // The lists of pieces and `results` or `arrived` are in mapped host memory or on the device.

  // Copies each piece to its `out` and stores its result (transfers.hpp) behind it, released to the system.
  virtual CudaError pull_pieces(const kernels::PulledPiece* pieces, std::uint32_t count, std::uint64_t* results,
                                kernels::ChunkFormat format, Stream stream) = 0;
  // Copies each piece to its `to`, rounding to bfloat16 (to nearest, ties to even; NaN stays NaN) where asked, in the
  // order of the list as far as the device goes by it, and stores 1 to arrived[i] behind it, released to the system.
  virtual CudaError send_pieces(const kernels::SentPiece* pieces, std::uint32_t count, std::uint32_t* arrived,
                                bool as_bfloat16, Stream stream) = 0;
  // to[i] += scale * clip(from[i]) by one atomic add of system scope per element; clip: to +-clip_value where that is
  // above 0. `wide`: by fours, where the device can. Requires: the device has native atomics on host memory.
  virtual CudaError add_pieces(const kernels::AddedPiece* pieces, std::uint32_t count, float scale, float clip_value,
                               bool wide, Stream stream) = 0;

  // Rows (rows.hpp). `outside` is in mapped host memory: gets a row number that the table does not have, if there is one.

  // out row i = the values of row ids[i], each element whole. Rows that the table does not have are not read.
  virtual CudaError pull_rows(const kernels::RowTable& table, const kernels::RowIds& ids, float* out,
                              std::uint64_t* outside, Stream stream) = 0;
  // How many bytes of RowSort::room serve up to `most` rows. Enqueues nothing.
  virtual CudaError sort_rows_room(std::uint64_t most, std::size_t& bytes) = 0;
  // Sorts the row numbers, of a table of `rows` rows, and finds the distinct ones.
  virtual CudaError sort_rows(const kernels::RowIds& ids, std::uint64_t rows, const kernels::RowSort& to,
                              std::uint64_t* outside, Stream stream) = 0;
  // From sort_rows' `count` rows it stores the distinct row numbers to `ids` and the sums of their gradients, of `elements`
  // floats each, to `sums`, both in mapped host memory, `piece_rows` rows at a time. arrived[i] = 1 + the rows of piece i,
  // behind it, released to the system, for all pieces that `count` rows could have. Sums have an order that only the
  // push decides.
  virtual CudaError send_rows(const kernels::RowSort& rows, std::uint64_t count, const float* gradients,
                              std::uint32_t elements, std::uint32_t piece_rows, std::uint64_t* ids, float* sums,
                              std::uint32_t* arrived, Stream stream) = 0;
};

// The real ones. Without CUDA in the build every call returns kInsufficientDriver.
TransferKernels& transfer_kernels();

}  // namespace ps::device
