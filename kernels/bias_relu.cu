// Adds a hidden layer's bias to each row of its outputs, and applies the rectifier max(0, x) to the sums (Nair and
// Hinton 2010), so that the product is read and written once. Computes as tools/train/models/dense/mlp.cpp; NaN stays NaN;
// the rectifier of cublasLt's epilogues would turn it into 0.
#include "launch.cuh"
#include "model_launchers.hpp"

namespace ps_shm::kernels {
namespace {

constexpr unsigned kColumns = 32, kRows = 8;  // of a block: a warp reads 128 bytes of a row

__global__ void __launch_bounds__(kColumns* kRows)
    bias_relu_kernel(float* values, const float* bias, int rows, int columns) {
  const unsigned column = blockIdx.x * kColumns + threadIdx.x;
  if (column >= static_cast<unsigned>(columns)) return;
  const float added = bias[column];
  for (std::size_t row = std::size_t{blockIdx.y} * kRows + threadIdx.y; row < static_cast<std::size_t>(rows);
       row += std::size_t{gridDim.y} * kRows) {
    float& value = values[row * columns + column];
    const float sum = value + added;
    value = sum < 0 ? 0.0F : sum;
  }
}

const Loadable loadable{bias_relu_kernel};

}  // namespace

cudaError_t bias_relu(float* values, const float* bias, int rows, int columns, cudaStream_t stream) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  const dim3 grid((static_cast<unsigned>(columns) + kColumns - 1) / kColumns,
                  blocks_for(static_cast<std::size_t>(rows), kRows));
  return launch(bias_relu_kernel, grid, dim3(kColumns, kRows), stream, values, bias, rows, columns);
}

}  // namespace ps_shm::kernels
