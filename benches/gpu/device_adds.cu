// to[i] += 1, again and again, by atomic adds of device scope: CUDA promises their atomicity towards the same device
// only. Whether that holds for host memory that two processes of one device have registered is what the benchmark looks
// at.
#include "device_adds.hpp"
#include "kernels/launch.cuh"

namespace ps_shm::bench {
namespace {

__global__ void add_ones(float* to, std::uint32_t count, std::uint32_t rounds) {
  for (std::size_t i = kernels::first_element(); i < count; i += kernels::element_stride())
    for (std::uint32_t round = 0; round < rounds; ++round) atomicAdd(to + i, 1.0F);
}

}  // namespace

int launch_device_adds(float* to, std::uint32_t count, std::uint32_t rounds, void* stream) noexcept {
  if (count == 0) return cudaSuccess;
  return kernels::launch(add_ones, kernels::blocks_for(count, kernels::kThreads), kernels::kThreads,
                         static_cast<cudaStream_t>(stream), to, count, rounds);
}

}  // namespace ps_shm::bench
