// Mean softmax cross-entropy of a batch, and its gradient by the logits and by the bias that is added to them, as in
// tools/train/models/dense/loss.cpp: the largest logit of the row is subtracted before the exponential; NaN or infinity in
// a row shows in the loss.
//
// A single block for the loss: it is summed in float64 in an order that depends only on the numbers of rows and columns,
// without memory for the rows' losses, and before the gradient overwrites its input. For a batch that is small enough
// that block computes the gradients, too; else two more kernels do. The bits are the same.
#include "launch.cuh"
#include "model_launchers.hpp"
#include "sum_rows.cuh"

namespace ps_shm::kernels {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kLossThreads = kSumThreads, kLossWarps = kLossThreads / kWarp;
constexpr unsigned kAllLanes = 0xffffffffU;
// The largest batch for one kernel, in logits: 32 for each thread. Chosen without a GPU.
constexpr std::size_t kOneKernel = std::size_t{32} * kLossThreads;

// A row of logits: what the last layer has computed, and its bias.
struct Logits {
  __device__ float operator[](int column) const { return values[column] + bias[column]; }

  float* values;
  const float* bias;
};

// A row's largest logit, and the sum of exp(logit - largest); the same in every lane of the calling warp.
struct Row {
  float largest, exponentials;
};

__device__ Row look_at(const Logits& logits, int columns) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  Row row{-__int_as_float(0x7f800000), 0.0F};
  // A NaN is skipped here; it reappears in its exponential.
  for (int c = lane; c < columns; c += kWarp) row.largest = fmaxf(row.largest, logits[c]);
  for (unsigned apart = kWarp / 2; apart != 0; apart /= 2)
    row.largest = fmaxf(row.largest, __shfl_xor_sync(kAllLanes, row.largest, apart));
  for (int c = lane; c < columns; c += kWarp) row.exponentials += expf(logits[c] - row.largest);
  for (unsigned apart = kWarp / 2; apart != 0; apart /= 2)
    row.exponentials += __shfl_xor_sync(kAllLanes, row.exponentials, apart);
  return row;
}

// The logit of the label, in every lane of the calling warp. The lane that overwrites it is the one that reads it.
__device__ float logit_of(const Logits& logits, int label, int columns) {
  // A label out of range, which is not allowed, shows in the loss.
  if (label >= columns) return __int_as_float(0x7fc00000);
  float logit = label % kWarp == threadIdx.x % kWarp ? logits[label] : 0.0F;
  for (unsigned apart = kWarp / 2; apart != 0; apart /= 2) logit += __shfl_xor_sync(kAllLanes, logit, apart);
  return logit;
}

// Each lane of the calling warp overwrites those logits of the row that it alone has read.
__device__ void overwrite(const Logits& logits, const Row& row, int label, int columns, float share) {
  const float factor = share / row.exponentials;
  for (int c = static_cast<int>(threadIdx.x % kWarp); c < columns; c += kWarp) {
    const float part = expf(logits[c] - row.largest) * factor;
    logits.values[c] = c == label ? part - share : part;
  }
}

template <bool kWithGradient>
__global__ void __launch_bounds__(kLossThreads)
    loss_kernel(float* logits, const float* bias, const std::uint8_t* labels, int rows, int columns, float share,
                float* loss, float* bias_gradient) {
  __shared__ double sums[kLossWarps];
  const unsigned warp = threadIdx.x / kWarp;
  double sum = 0.0;
  for (std::size_t i = warp; i < static_cast<std::size_t>(rows); i += kLossWarps) {
    const Logits values{logits + i * columns, bias};
    const Row row = look_at(values, columns);
    const int label = labels[i];
    const float logit = logit_of(values, label, columns);
    sum += static_cast<double>(logf(row.exponentials) - (logit - row.largest));
    if (kWithGradient) overwrite(values, row, label, columns, share);
  }
  if (threadIdx.x % kWarp == 0) sums[warp] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0.0;
    for (const double one : sums) total += one;
    *loss = static_cast<float>(total / rows);
  }
  if (kWithGradient)
    for (unsigned first = 0; first < static_cast<unsigned>(columns); first += kSumColumns)
      sum_rows([=](std::size_t i) { return logits[i]; }, rows, columns, first, bias_gradient);
}

__global__ void __launch_bounds__(kThreads)
    gradient_kernel(float* logits, const float* bias, const std::uint8_t* labels, int rows, int columns, float share) {
  const std::size_t stride = std::size_t{gridDim.x} * (kThreads / kWarp);
  for (std::size_t i = std::size_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
       i < static_cast<std::size_t>(rows); i += stride) {
    const Logits values{logits + i * columns, bias};
    overwrite(values, look_at(values, columns), labels[i], columns, share);
  }
}

const Loadable loadable[] = {Loadable{loss_kernel<true>}, Loadable{loss_kernel<false>}, Loadable{gradient_kernel},
                             Loadable{sum_kernel}};

}  // namespace

cudaError_t softmax_cross_entropy(float* logits, const float* bias, const std::uint8_t* labels, int rows, int columns,
                                  float* loss, float* bias_gradient, cudaStream_t stream) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  const float share = 1.0F / static_cast<float>(rows);
  const bool is_one_kernel = static_cast<std::size_t>(rows) * columns <= kOneKernel;
  cudaError_t error = launch(is_one_kernel ? loss_kernel<true> : loss_kernel<false>, 1, kLossThreads, stream, logits,
                             bias, labels, rows, columns, share, loss, bias_gradient);
  if (error != cudaSuccess || is_one_kernel) return error;
  error = launch(gradient_kernel, blocks_for(static_cast<std::size_t>(rows), kThreads / kWarp), kThreads, stream,
                 logits, bias, labels, rows, columns, share);
  if (error != cudaSuccess) return error;
  return launch(sum_kernel, blocks_of_sums(columns), kSumThreads, stream, logits, rows, columns, bias_gradient);
}

}  // namespace ps_shm::kernels
