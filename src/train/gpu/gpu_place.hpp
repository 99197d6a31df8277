// On which GPU a worker computes, and what that has come to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "device/cuda_calls.hpp"
#include "device/probe.hpp"
#include "device/transfer_kernels.hpp"
#include "ps/gpu.hpp"
#include "train/gpu/model_kernels.hpp"

namespace ps::train {

struct GpuPlace {
  device::GpuInfo gpu;
  Wire wire = Wire::kFloat32;
  bool stream_waits = false;    // a step is enqueued ahead, behind a wait on the stream: for one worker in a process
  double resident_share = 0.5;  // of the free memory that the training set may have; else it is sent batch by batch
  device::CudaCalls* cuda = nullptr;  // they outlive what computes with them
  device::TransferKernels* transfers = nullptr;
  ModelKernels* kernels = nullptr;
};

// Lets this thread, and those that it starts from now on, run only on the processors next to the GPU: host memory that
// they touch is near it then. Does nothing where the box has one node, the node is unknown, or none of its processors
// is allowed.
void run_near(const device::GpuInfo& gpu);

// The GPU for the worker of this rank, near which it runs from here on; none for the CPU, with the reason in `notice`
// where a GPU would have been taken. Throws Error where one must be there and is not.
std::optional<GpuPlace> choose_gpu_place(const device::DeviceChoice& choice, Wire wire, std::uint32_t rank,
                                         std::string& notice);

// Means of some steps by the GPU's own clock: what a step consists of from one push's end to the next one's.
struct GpuStepSeconds {
  std::uint64_t sampled = 0;                                 // steps
  double wait = 0.0, pull = 0.0, compute = 0.0, push = 0.0;  // seconds of one step
  double total() const { return wait + pull + compute + push; }
  double idle_share() const { return total() > 0 ? wait / total() : 0.0; }
};

struct GpuReport {
  std::string device;  // its name
  GpuTransfers transfers;
  GpuStepSeconds step;
  bool is_resident = false;  // the training set
  bool is_captured = false;  // a step's kernels, into a graph
};

}  // namespace ps::train
