// Sums the gradients of each row of a push and stores the sums to mapped host memory, chunk by chunk, with a flag after
// each, so that the CPU applies the first ones while the others are on the bus. No atomics: each row is summed by one
// group of threads, and the order of its sum depends on the push alone.
//
// Each block sends one chunk at a time, and a group of lanes sums one row. Rows with many gradients, which occur in
// skewed data, are summed afterwards by the whole block. A reader that acquires arrived[i] sees all of chunk i: each
// thread's stores come before the barrier, and the barrier before the release, as in send_pieces.cu.
#include "launch.cuh"
#include "system_memory.cuh"
#include "transfer_launchers.hpp"

namespace ps_shm::kernels {
namespace {

constexpr unsigned kSendThreads = 512, kMaxLanes = 32;
// Blocks on a multiprocessor. For sm_120 the compiler would rather spill registers than have two; 0: as it likes.
// The stand-in for CUDA on the CPU has no launch bounds, so clang sees no use.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
[[maybe_unused]] constexpr unsigned kLeastBlocks = 2;
#else
[[maybe_unused]] constexpr unsigned kLeastBlocks = 0;
#endif
constexpr std::uint32_t kTogether = 128;  // gradients of a row from which on the block sums it; estimated, not measured

// Few, so that chunks arrive one after the other; more than kSenders, since these loads are scattered and more of
// them must be in flight.
constexpr std::size_t kMaxSenders = 64;

__device__ inline float sum_of(float a, float b) { return a + b; }
__device__ inline float4 sum_of(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

struct Span {
  std::uint32_t begin, end;
};

__device__ inline Span places_of(const RowSort& rows, std::uint32_t row, std::uint32_t distinct, std::uint32_t count) {
  return {rows.begins[row], row + 1 < distinct ? rows.begins[row + 1] : count};
}

// The sum of positions begin, begin + step, ... of column `c`. Requires: begin < end.
template <class T>
__device__ inline T sum_places(const T* gradients, const std::uint32_t* places, Span span, std::uint32_t step,
                               std::size_t columns, std::size_t c) {
  T sum = gradients[places[span.begin] * columns + c];
  for (std::uint64_t k = std::uint64_t{span.begin} + step; k < span.end; k += step)
    sum = sum_of(sum, gradients[places[k] * columns + c]);
  return sum;
}

// Called by all threads of the block.
template <class T>
__device__ void sum_together(const T* gradients, const std::uint32_t* places, Span span, std::size_t columns, T* to,
                             T* shared) {
  const unsigned groups = blockDim.y, at = threadIdx.y * blockDim.x + threadIdx.x;
  for (std::size_t first = 0; first < columns; first += blockDim.x) {
    const std::size_t c = first + threadIdx.x;
    if (c < columns)  // a row that is summed by the block has a position for every group
      shared[at] = sum_places(gradients, places, {span.begin + threadIdx.y, span.end}, groups, columns, c);
    for (unsigned half = groups / 2; half != 0; half /= 2) {
      __syncthreads();
      if (threadIdx.y < half && c < columns) shared[at] = sum_of(shared[at], shared[at + half * blockDim.x]);
    }
    if (threadIdx.y == 0 && c < columns) to[c] = shared[at];
    __syncthreads();
  }
}

template <class T>  // float, or float4 for rows that consist of aligned vectors
__global__ void __launch_bounds__(kSendThreads, kLeastBlocks)
    send_kernel(RowSort rows, std::uint32_t count, const T* gradients, std::size_t columns, std::uint32_t piece_rows,
                std::uint32_t pieces, std::uint64_t* ids, T* sums, std::uint32_t* arrived) {
  __shared__ T shared[kSendThreads];
  const std::uint32_t distinct = *rows.distinct, together = blockDim.y > kTogether ? blockDim.y : kTogether;
  for (std::uint64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const std::uint64_t wanted = piece * piece_rows;
    const std::uint32_t begin = wanted < distinct ? static_cast<std::uint32_t>(wanted) : distinct;
    const std::uint32_t end = distinct - begin < piece_rows ? distinct : begin + piece_rows;
    int has_more = 0;
    for (std::uint64_t row = std::uint64_t{begin} + threadIdx.y; row < end; row += blockDim.y) {
      const Span span = places_of(rows, static_cast<std::uint32_t>(row), distinct, count);
      if (threadIdx.x == 0) ids[row] = rows.given[row];
      if (span.end - span.begin >= together) {
        has_more = 1;
        continue;
      }
      for (std::size_t c = threadIdx.x; c < columns; c += blockDim.x)
        sums[row * columns + c] = sum_places(gradients, rows.places, span, 1, columns, c);
    }
    if (__syncthreads_or(has_more) != 0)
      for (std::uint32_t row = begin; row < end; ++row) {
        const Span span = places_of(rows, row, distinct, count);
        if (span.end - span.begin >= together)
          sum_together(gradients, rows.places, span, columns, sums + row * columns, shared);
      }
    __syncthreads();  // (gpu.G2)
    // (gpu.G2) pairs with gpu.G3
    if (threadIdx.x == 0 && threadIdx.y == 0) store_release_system(arrived + piece, 1 + (end - begin));
  }
}

const Loadable loadable[] = {Loadable{send_kernel<float>}, Loadable{send_kernel<float4>}};

template <class T>
cudaError_t send(const RowSort& rows, std::uint64_t count, const float* gradients, std::size_t columns,
                 std::uint32_t piece_rows, std::uint64_t* ids, float* sums, std::uint32_t* arrived,
                 cudaStream_t stream) {
  unsigned lanes = 1;
  while (lanes < kMaxLanes && lanes < columns) lanes *= 2;
  const auto pieces = static_cast<std::uint32_t>((count + piece_rows - 1) / piece_rows);
  return launch(send_kernel<T>, blocks_for(pieces < kMaxSenders ? pieces : kMaxSenders, 1),
                dim3(lanes, kSendThreads / lanes), stream, rows, static_cast<std::uint32_t>(count),
                reinterpret_cast<const T*>(gradients), columns, piece_rows, pieces, ids, reinterpret_cast<T*>(sums),
                arrived);
}

}  // namespace

cudaError_t send_rows(const RowSort& rows, std::uint64_t count, const float* gradients, std::uint32_t elements,
                      std::uint32_t piece_rows, std::uint64_t* ids, float* sums, std::uint32_t* arrived,
                      cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  if (count > rows.most || elements == 0 || piece_rows == 0) return cudaErrorInvalidValue;
  const auto addresses = reinterpret_cast<std::size_t>(gradients) | reinterpret_cast<std::size_t>(sums);
  if (elements % 4 == 0 && addresses % sizeof(float4) == 0)
    return send<float4>(rows, count, gradients, elements / 4, piece_rows, ids, sums, arrived, stream);
  return send<float>(rows, count, gradients, elements, piece_rows, ids, sums, arrived, stream);
}

}  // namespace ps_shm::kernels
