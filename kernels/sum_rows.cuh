// The sum of a matrix's rows: the gradient of a bias.
//
// Each warp of a block sums every 32nd row; then one thread per column adds the warps' sums, so the order depends on the
// number of rows alone.
#pragma once

#include "launch.cuh"

namespace ps_shm::kernels {

inline constexpr unsigned kSumThreads = 1024;  // of the block
inline constexpr unsigned kSumColumns = 32, kSumWarps = kSumThreads / kSumColumns;

// How many blocks sum all columns, 32 each.
inline unsigned blocks_of_sums(int columns) { return (static_cast<unsigned>(columns) + kSumColumns - 1) / kSumColumns; }

// out[c] = the sum of value(place of c in the row) over all rows, for the 32 columns from `first` on. value() is called
// once for each place. For all threads of the block.
template <class Value>
__device__ void sum_rows(Value&& value, int rows, int columns, unsigned first, float* out) {
  __shared__ float sums[kSumWarps][kSumColumns];
  const unsigned warp = threadIdx.x / kSumColumns, lane = threadIdx.x % kSumColumns, column = first + lane;
  const bool has_column = column < static_cast<unsigned>(columns);
  float sum = 0.0F;
  if (has_column)
    for (std::size_t row = warp; row < static_cast<std::size_t>(rows); row += kSumWarps)
      sum += value(row * columns + column);
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp == 0 && has_column) {
    for (unsigned k = 1; k < kSumWarps; ++k) sum += sums[k][lane];
    out[column] = sum;
  }
  __syncthreads();  // before the next columns' sums
}

// The same of values that are there, with blocks_of_sums() blocks.
static __global__ void __launch_bounds__(kSumThreads)
    sum_kernel(const float* values, int rows, int columns, float* out) {
  sum_rows([=](std::size_t i) { return values[i]; }, rows, columns, blockIdx.x * kSumColumns, out);
}

}  // namespace ps_shm::kernels
