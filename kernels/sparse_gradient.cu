// The losses of a batch of sparse examples, and their gradients by the rows that they touch, as the models of
// tools/train/models/sparse compute them one by one. A warp computes one example at a time. For a linear model its lanes
// share the example's rows; for models with factors each lane has columns of its own, so that neighbouring lanes read
// neighbouring floats of a row, and the sums of a column stay in a register. Sums depend on the example only.
#include "launch.cuh"
#include "model_launchers.hpp"

namespace ps_shm::kernels {
namespace {

constexpr unsigned kWarp = 32, kExamples = kThreads / kWarp;  // of a block
constexpr unsigned kAllLanes = 0xffffffffU;

// One example. Rows and gradients are those of its own.
struct Example {
  const float *rows, *values, *scales;
  float* gradients;
  std::uint64_t count;
};

// Of a column, the sum of t_i = v_i x_i over the rows, and that of the squares.
struct Column {
  float sum, squares;
};

__device__ Column sum_column(const Example& example, unsigned width, unsigned column) {
  Column of{0.0F, 0.0F};
  for (std::uint64_t i = 0; i < example.count; ++i) {
    const float t = example.rows[i * width + column] * example.values[i];
    of.sum += t;
    of.squares += t * t;
  }
  return of;
}

// What this lane adds to the score.
template <SparseScore kScore>
__device__ float part_of_score(const Example& example, unsigned width, unsigned lane) {
  float part = 0.0F;
  if constexpr (kScore == SparseScore::kLinear) {
    for (std::uint64_t i = lane; i < example.count; i += kWarp) part += example.rows[i] * example.values[i];
  } else if constexpr (kScore == SparseScore::kPair) {
    for (unsigned column = lane; column < width; column += kWarp) {
      const float *first = example.rows + column, *second = first + width;
      if (column == 0)
        for (std::uint64_t i = 0; i < example.count; ++i) part += first[i * width];
      else if (example.count == 2)
        part += *first * *second;
    }
  } else {
    for (unsigned column = lane; column < width; column += kWarp) {
      const Column of = sum_column(example, width, column);
      part += column == 0 ? of.sum : 0.5F * (of.sum * of.sum - of.squares);
    }
  }
  return part;
}

__device__ void write(const Example& example, const SparseBatch& batch, unsigned width, std::uint64_t row,
                      unsigned column, float gradient) {
  const std::uint64_t at = row * width + column;
  if (example.scales != nullptr)
    gradient += example.scales[row] * (column == 0 ? batch.l2_first : batch.l2_factors) * example.rows[at];
  example.gradients[at] = gradient;
}

template <SparseScore kScore>
__device__ void write_gradient(const Example& example, const SparseBatch& batch, unsigned width, float slope,
                               unsigned lane) {
  if constexpr (kScore == SparseScore::kLinear) {
    for (std::uint64_t i = lane; i < example.count; i += kWarp)
      write(example, batch, 1, i, 0, slope * example.values[i]);
  } else if constexpr (kScore == SparseScore::kPair) {
    for (unsigned column = lane; column < width; column += kWarp)
      for (std::uint64_t i = 0; i < example.count; ++i) {
        const float other = example.count == 2 ? example.rows[(1 - i) * width + column] : 0.0F;
        write(example, batch, width, i, column, column == 0 ? slope : slope * other);
      }
  } else {
    for (unsigned column = lane; column < width; column += kWarp) {
      const float sum = column == 0 ? 0.0F : sum_column(example, width, column).sum;
      for (std::uint64_t i = 0; i < example.count; ++i) {
        const float x = example.values[i], by_x = slope * x;
        write(example, batch, width, i, column,
              column == 0 ? by_x : by_x * (sum - example.rows[i * width + column] * x));
      }
    }
  }
}

template <SparseScore kScore>
__global__ void __launch_bounds__(kThreads)
    sparse_kernel(SparseForm form, SparseBatch batch, const float* rows, float* gradients, float* losses) {
  const unsigned lane = threadIdx.x % kWarp;
  const std::size_t stride = std::size_t{gridDim.x} * kExamples;
  for (std::size_t e = std::size_t{blockIdx.x} * kExamples + threadIdx.x / kWarp; e < batch.examples; e += stride) {
    const std::uint64_t begin = batch.begins[e];
    const Example example{.rows = rows + begin * form.width,
                          .values = batch.values + begin,
                          .scales = batch.scales == nullptr ? nullptr : batch.scales + begin,
                          .gradients = gradients + begin * form.width,
                          .count = batch.begins[e + 1] - begin};
    float score = part_of_score<kScore>(example, form.width, lane);
    for (unsigned apart = kWarp / 2; apart != 0; apart /= 2) score += __shfl_xor_sync(kAllLanes, score, apart);
    const LossAt at = loss_at(form.loss, batch.targets[e], form.mean + score);
    write_gradient<kScore>(example, batch, form.width, at.slope, lane);
    if (lane == 0) losses[e] = at.loss;
  }
}

const Loadable loadable[] = {Loadable{sparse_kernel<SparseScore::kLinear>}, Loadable{sparse_kernel<SparseScore::kPair>},
                             Loadable{sparse_kernel<SparseScore::kFactors>}};

}  // namespace

cudaError_t sparse_gradient(const SparseForm& form, const SparseBatch& batch, const float* rows, float* gradients,
                            float* losses, cudaStream_t stream) {
  if (batch.examples == 0) return cudaSuccess;
  const auto kernel = form.score == SparseScore::kLinear ? sparse_kernel<SparseScore::kLinear>
                      : form.score == SparseScore::kPair ? sparse_kernel<SparseScore::kPair>
                                                         : sparse_kernel<SparseScore::kFactors>;
  return launch(kernel, blocks_for(batch.examples, kExamples), kThreads, stream, form, batch, rows, gradients, losses);
}

}  // namespace ps_shm::kernels
