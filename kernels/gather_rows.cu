// Gathers the rows and labels of a batch from a data set in device memory, so that a step transfers indices only. Each
// warp copies one row at a time.
#include "launch.cuh"
#include "model_launchers.hpp"

namespace ps_shm::kernels {
namespace {

constexpr unsigned kLanes = 32, kRows = kThreads / kLanes;  // of a block

template <class T>  // float, or float4 for rows that consist of aligned vectors
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const T* set, const std::uint8_t* set_labels, const std::uint32_t* indices, std::size_t rows,
                  std::size_t columns, T* out, std::uint8_t* labels) {
  for (std::size_t i = std::size_t{blockIdx.x} * kRows + threadIdx.y; i < rows; i += std::size_t{gridDim.x} * kRows) {
    const std::size_t index = indices[i];
    for (std::size_t c = threadIdx.x; c < columns; c += kLanes) out[i * columns + c] = set[index * columns + c];
    if (threadIdx.x == 0) labels[i] = set_labels[index];
  }
}

const Loadable loadable[] = {Loadable{gather_kernel<float4>}, Loadable{gather_kernel<float>}};

}  // namespace

cudaError_t gather_rows(const float* set, const std::uint8_t* set_labels, const std::uint32_t* indices, int rows,
                        int columns, float* out, std::uint8_t* labels, cudaStream_t stream) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  const auto count = static_cast<std::size_t>(rows), width = static_cast<std::size_t>(columns);
  const auto addresses = reinterpret_cast<std::size_t>(set) | reinterpret_cast<std::size_t>(out);
  const dim3 block(kLanes, kRows);
  if (width % 4 == 0 && addresses % sizeof(float4) == 0)
    return launch(gather_kernel<float4>, blocks_for(count, kRows), block, stream, reinterpret_cast<const float4*>(set),
                  set_labels, indices, count, width / 4, reinterpret_cast<float4*>(out), labels);
  return launch(gather_kernel<float>, blocks_for(count, kRows), block, stream, set, set_labels, indices, count, width,
                out, labels);
}

}  // namespace ps_shm::kernels
