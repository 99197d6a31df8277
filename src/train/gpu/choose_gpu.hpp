// Which GPU a worker computes on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "device/probe.hpp"
#include "train/loop/gpu_place.hpp"

namespace ps_shm::train {

// Restricts this thread, and threads that it starts from now on, to the processors next to the GPU, so that host memory
// that they touch is near it. Does nothing if the machine has one node, the node is unknown, or none of its processors
// is allowed.
void run_near(const device::GpuInfo& gpu);

// The GPU for the worker of this rank, near which it runs from now on; none for the CPU, with the reason in `log`
// if a GPU was wanted. Throws Error if a GPU is required but not available.
std::optional<GpuPlace> choose_gpu_place(const device::DeviceChoice& choice, Wire wire, std::uint32_t rank,
                                         std::string& log);

}  // namespace ps_shm::train
