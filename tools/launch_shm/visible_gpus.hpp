// Which GPU a worker sees: one each, by CUDA_VISIBLE_DEVICES. A CUDA process uses one MIG instance, the first that it
// sees, so ranks are spread over several instances only if each sees its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/cuda_calls.hpp"
#include "device/probe.hpp"

namespace ps_shm::tools {

// The entries for CUDA_VISIBLE_DEVICES: those that it has already, else those that nvidia-smi lists, with MIG instances
// instead of the GPU that they are parts of, else CUDA's numbers. Empty if there is no GPU.
std::vector<std::string> visible_gpus(device::CudaCalls& cuda = device::cuda_calls());

// As `nvidia-smi -L` lists them.
std::vector<std::string> listed_gpus(const std::string& listing);

// The variable for the process of workers with this number, which then sees its GPU as number 0; none if it computes on
// the CPU, or chooses a GPU that does not exist.
std::vector<std::string> show_one_gpu(const std::vector<std::string>& gpus, std::uint32_t process,
                                      device::DeviceChoice& choice);

}  // namespace ps_shm::tools
