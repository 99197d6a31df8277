// GPU computations of models: the kernels of kernels/ and cuBLAS's product, behind a table that tests can replace.
//
// All calls only enqueue, in stream order, and return cudaError_t's number; pointers are device pointers; matrices are
// float32, row by row without gaps. Results do not depend on timing. Zero rows or columns are allowed and do nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda_calls.hpp"
#include "kernels/sparse_batch.hpp"

namespace ps_shm::train {

class ModelKernels {
 public:
  virtual ~ModelKernels() = default;

  // Loads all kernels, on the current device: see device::TransferKernels::load.
  // The kernels of multiply are loaded by its first run with the same shapes: do that first, too.
  virtual device::CudaError load() = 0;

  // Prepares multiply on this stream: a workspace and a handle. Throws Error if cuBLAS cannot be loaded.
  virtual void prepare_products(device::Stream stream) = 0;
  virtual void release_products(device::Stream stream) = 0;
  // out (m x n) = op(a) (m x k) op(b) (k x n) + beta out. a_transposed: `a` is stored k x m; b_transposed: n x k.
  // Requires: prepare_products(stream). The same inputs give the same bits.
  virtual device::CudaError multiply(bool a_transposed, bool b_transposed, int m, int n, int k, const float* a,
                                     const float* b, float beta, float* out, device::Stream stream) = 0;
  // Each row: values = max(0, values + bias), NaN stays NaN.
  virtual device::CudaError bias_relu(float* values, const float* bias, int rows, int columns,
                                      device::Stream stream) = 0;
  // gradient = 0 where activations are 0 or below; bias_gradient = the sum of its rows then.
  virtual device::CudaError relu_gradient(float* gradient, const float* activations, int rows, int columns,
                                          float* bias_gradient, device::Stream stream) = 0;
  // The mean loss of logits + bias (in each row): writes it to *loss, overwrites the logits with its gradient by them,
  // and writes its gradient by the bias, the sum of those rows.
  virtual device::CudaError softmax_cross_entropy(float* logits, const float* bias, const std::uint8_t* labels,
                                                  int rows, int columns, float* loss, float* bias_gradient,
                                                  device::Stream stream) = 0;
  // out row i = set row indices[i]; the same of one byte each for labels.
  virtual device::CudaError gather_rows(const float* set, const std::uint8_t* set_labels, const std::uint32_t* indices,
                                        int rows, int columns, float* out, std::uint8_t* labels,
                                        device::Stream stream) = 0;
  // One step of plain SGD as update::apply has it: L2 added to the gradient (clipped before), decoupled decay.
  virtual device::CudaError sgd_step(float* parameters, const float* gradient, std::size_t count, float rate, float l2,
                                     float weight_decay, float clip_value, device::Stream stream) = 0;
  // out = factor * (a - b).
  virtual device::CudaError difference(const float* a, const float* b, float factor, float* out, std::size_t count,
                                       device::Stream stream) = 0;
  // values = value.
  virtual device::CudaError fill(float* values, float value, std::size_t count, device::Stream stream) = 0;
  // Of each example of the batch its loss, and the gradient of that loss by each of its rows, with the row's L2. Rows,
  // gradients and what the batch points at are as long as the batch says; losses may be in page-locked memory.
  virtual device::CudaError sparse_gradient(const kernels::SparseForm& form, const kernels::SparseBatch& batch,
                                            const float* rows, float* gradients, float* losses,
                                            device::Stream stream) = 0;
};

// The real implementation. Without CUDA in the build every call returns kInsufficientDriver.
ModelKernels& model_kernels();

}  // namespace ps_shm::train
