// The launchers of the models' kernels, which the C++ side calls. They are described in
// tools/train/gpu/model_kernels.hpp.
//
// All enqueue work on the stream and return whether that succeeded. With empty input they enqueue nothing and succeed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "sparse_batch.hpp"

namespace ps_shm::kernels {

cudaError_t bias_relu(float* values, const float* bias, int rows, int columns, cudaStream_t stream);
cudaError_t relu_gradient(float* gradient, const float* activations, int rows, int columns, float* bias_gradient,
                          cudaStream_t stream);
cudaError_t softmax_cross_entropy(float* logits, const float* bias, const std::uint8_t* labels, int rows, int columns,
                                  float* loss, float* bias_gradient, cudaStream_t stream);
cudaError_t gather_rows(const float* set, const std::uint8_t* set_labels, const std::uint32_t* indices, int rows,
                        int columns, float* out, std::uint8_t* labels, cudaStream_t stream);
cudaError_t sgd_step(float* parameters, const float* gradient, std::size_t count, float rate, float l2,
                     float weight_decay, float clip_value, cudaStream_t stream);
cudaError_t difference(const float* a, const float* b, float factor, float* out, std::size_t count,
                       cudaStream_t stream);
cudaError_t fill(float* values, float value, std::size_t count, cudaStream_t stream);
cudaError_t sparse_gradient(const SparseForm& form, const SparseBatch& batch, const float* rows, float* gradients,
                            float* losses, cudaStream_t stream);

}  // namespace ps_shm::kernels
