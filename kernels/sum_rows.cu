// Sums the rows of a matrix: the gradient of a bias. Each block sums 32 columns. Each of its warps sums every 16th row;
// then one thread per column adds the warps' sums, so the order depends on the number of rows alone.
#include "launch.cuh"
#include "model_launchers.hpp"

namespace ps_shm::kernels {
namespace {

constexpr unsigned kColumns = 32, kRows = 16;  // of a block

__global__ void __launch_bounds__(kColumns* kRows) sum_kernel(const float* values, int rows, int columns, float* out) {
  __shared__ float sums[kRows][kColumns];
  const unsigned column = blockIdx.x * kColumns + threadIdx.x;
  float sum = 0.0F;
  if (column < static_cast<unsigned>(columns))
    for (std::size_t row = threadIdx.y; row < static_cast<std::size_t>(rows); row += kRows)
      sum += values[row * columns + column];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= static_cast<unsigned>(columns)) return;
  for (unsigned k = 1; k < kRows; ++k) sum += sums[k][threadIdx.x];
  out[column] = sum;
}

const Loadable loadable{sum_kernel};

}  // namespace

cudaError_t sum_rows(const float* values, int rows, int columns, float* out, cudaStream_t stream) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  const dim3 grid((static_cast<unsigned>(columns) + kColumns - 1) / kColumns);
  return launch(sum_kernel, grid, dim3(kColumns, kRows), stream, values, rows, columns, out);
}

}  // namespace ps_shm::kernels
