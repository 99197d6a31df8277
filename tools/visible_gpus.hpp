// Which GPU a worker sees: one each, by CUDA_VISIBLE_DEVICES. A process of CUDA uses one MIG instance, the first that it
// sees, so ranks come to lie on several instances only if each sees its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/probe.hpp"

namespace ps::tools {

// What CUDA_VISIBLE_DEVICES would name: what it names already, else what nvidia-smi lists, MIG instances instead of the GPU
// that they are parts of. Empty where neither says anything.
std::vector<std::string> visible_gpus();

// As `nvidia-smi -L` lists them.
std::vector<std::string> listed_gpus(const std::string& listing);

// The variable for the worker of this rank, for which its choice has number 0 then; none where it computes on the CPU, or
// chooses a GPU that there is not.
std::vector<std::string> show_one_gpu(const std::vector<std::string>& gpus, std::uint32_t rank,
                                      device::DeviceChoice& choice);

}  // namespace ps::tools
