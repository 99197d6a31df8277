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

// Threads of this process that wait for the GPU yield their cores. Sets that once for each device, before the device is
// used: it is a setting of the device's context, in which other workers of the process may already compute. For
// worker_shm only: a program with PyTorch in it keeps its own setting. Throws Error if the device cannot be used.
void yield_in_waits_once(device::CudaCalls& cuda, int device);

// The GPU for the worker of this rank, near which it runs from now on; none for the CPU, with the reason in `log`
// if a GPU was wanted. Throws Error if a GPU is required but not available.
std::optional<GpuPlace> choose_gpu_place(const device::DeviceChoice& choice, std::uint32_t rank, std::string& log);

}  // namespace ps_shm::train
