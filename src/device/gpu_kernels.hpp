// What is computed on a GPU: the kernels of kernels/ and cuBLAS's product, behind a table that tests replace.
//
// All calls only enqueue, in stream order, and return cudaError_t's number; pointers are the device's unless said
// otherwise; matrices are float32, row by row without gaps. Results do not depend on timing: no atomic adds but in
// add_pieces. Zero rows, columns or pieces are allowed and do nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "device/cuda_calls.hpp"
#include "kernels/rows.hpp"
#include "kernels/transfers.hpp"

namespace ps::device {

class GpuKernels {
 public:
  virtual ~GpuKernels() = default;

  // Loads all kernels, on the current device. CUDA would load each when it is first launched, which may wait for all
  // that the device has under way: for ever, where a stream waits for a word that the launching thread stores later.
  // What multiply launches is loaded by its first run with the same shapes: do that first, too.
  virtual CudaError load() = 0;

  // Transfers. The lists of pieces and `results` or `arrived` are in mapped host memory or on the device.

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
  // Of sort_rows' `count` rows: stores the distinct row numbers to `ids` and the sums of their gradients, of `elements`
  // floats each, to `sums`, both in mapped host memory, `piece_rows` rows at a time. arrived[i] = 1 + the rows of piece i,
  // behind it, released to the system, for all pieces that `count` rows could have. Sums have an order that only the
  // push decides.
  virtual CudaError send_rows(const kernels::RowSort& rows, std::uint64_t count, const float* gradients,
                              std::uint32_t elements, std::uint32_t piece_rows, std::uint64_t* ids, float* sums,
                              std::uint32_t* arrived, Stream stream) = 0;

  // Models.

  // What multiply needs on this stream: a workspace and a handle. Throws Error where cuBLAS cannot be loaded.
  virtual void prepare_products(Stream stream) = 0;
  virtual void release_products(Stream stream) = 0;
  // out (m x n) = op(a) (m x k) op(b) (k x n) + beta out. a_transposed: `a` is stored k x m; b_transposed: n x k.
  // Requires: prepare_products(stream). The same inputs give the same bits.
  virtual CudaError multiply(bool a_transposed, bool b_transposed, int m, int n, int k, const float* a, const float* b,
                             float beta, float* out, Stream stream) = 0;
  // Each row: values = max(0, values + bias), NaN stays NaN.
  virtual CudaError bias_relu(float* values, const float* bias, int rows, int columns, Stream stream) = 0;
  // Each row: values += bias.
  virtual CudaError add_bias(float* values, const float* bias, int rows, int columns, Stream stream) = 0;
  // gradient = 0 where activations are 0 or below.
  virtual CudaError relu_gradient(float* gradient, const float* activations, std::size_t count, Stream stream) = 0;
  // Overwrites the logits with the gradient of the mean loss by them, and writes that mean loss to *loss.
  virtual CudaError softmax_cross_entropy(float* logits, const std::uint8_t* labels, int rows, int columns, float* loss,
                                          Stream stream) = 0;
  // out = the sum of the rows.
  virtual CudaError sum_rows(const float* values, int rows, int columns, float* out, Stream stream) = 0;
  // out row i = set row indices[i]; the same of one byte each for labels.
  virtual CudaError gather_rows(const float* set, const std::uint8_t* set_labels, const std::uint32_t* indices,
                                int rows, int columns, float* out, std::uint8_t* labels, Stream stream) = 0;
  // One step of plain SGD as update::apply has it: L2 added to the gradient (clipped before), decoupled decay.
  virtual CudaError sgd_step(float* parameters, const float* gradient, std::size_t count, float rate, float l2,
                             float weight_decay, float clip_value, Stream stream) = 0;
  // out = factor * (a - b).
  virtual CudaError difference(const float* a, const float* b, float factor, float* out, std::size_t count,
                               Stream stream) = 0;
  // values = value.
  virtual CudaError fill(float* values, float value, std::size_t count, Stream stream) = 0;
};

// The real ones. Without CUDA in the build every call returns kInsufficientDriver.
GpuKernels& gpu_kernels();

}  // namespace ps::device
