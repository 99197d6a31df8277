// The GPU on which a worker computes, and statistics of what it did there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "device/cuda_calls.hpp"
#include "device/probe.hpp"
#include "device/transfer_kernels.hpp"
#include "ps_shm/gpu.hpp"

namespace ps_shm::train {

class ModelKernels;  // train/gpu/model_kernels.hpp

// How the work of a step is enqueued.
enum class Enqueue {
  kAhead,   // during the previous step, behind a wait on the stream: only for one worker per process
  kStep,    // as one graph, once the step has opened
  kKernels  // the same, kernel by kernel
};

struct GpuPlace {
  device::GpuInfo gpu;
  Wire wire = Wire::kFloat32;  // transfer dtype of gradients
  Enqueue enqueue = Enqueue::kStep;
  double resident_share = 0.5;  // fraction of the free memory for the training set; otherwise it is sent batch by batch
  device::CudaCalls* cuda = nullptr;  // these three outlive their users
  device::TransferKernels* transfers = nullptr;
  ModelKernels* kernels = nullptr;
};

// Means over some steps by the GPU's own clock: the phases of a step, from one push's end to the next one's. While this
// worker's stream waits, the GPU may work for other workers.
struct GpuStepSeconds {
  std::uint64_t sampled = 0;                                 // steps
  double wait = 0.0, pull = 0.0, compute = 0.0, push = 0.0;  // seconds of one step
  double total() const { return wait + pull + compute + push; }
  double idle_share() const { return total() > 0 ? wait / total() : 0.0; }
};

struct GpuReport {
  std::string device;  // its name
  GpuTransfers transfers;
  std::optional<GpuRowTransfers>
      rows;  // of a sparse model, which has no other transfers and no times by the GPU's clock
  GpuStepSeconds step;
  bool is_resident = false;  // the training set is in the GPU's memory
  // Of a step in one launch, from the wait for it to the transfer of its gradients: waits, kernels and copies. 0: steps
  // are enqueued kernel by kernel.
  std::size_t graph_operations = 0;
};

}  // namespace ps_shm::train
