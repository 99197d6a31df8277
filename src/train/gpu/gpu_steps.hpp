// What a step computes on a GPU, from pulled parameters to what is pushed: a gradient, or the difference made by some
// local steps. Recorded into a graph after its first run, so that enqueueing it again costs one call.
//
// The pulled parameters are only read, so a step whose parameters have changed is simply enqueued again. One thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "device/resources.hpp"
#include "train/gpu/gpu_batches.hpp"
#include "train/gpu/gpu_model.hpp"
#include "train/loop/engine.hpp"

namespace ps_shm::train {

// Values of all parameters of a model in one block of device memory, each aligned to 256 bytes.
class GpuArrays {
 public:
  GpuArrays(std::span<const ParameterSpec> specs, device::CudaCalls& cuda);

  std::span<float* const> pointers() const { return arrays_; }
  std::span<const float* const> values() const { return {arrays_.data(), arrays_.size()}; }
  const device::DeviceMemory<float>& memory() const { return memory_; }

 private:
  device::DeviceMemory<float> memory_;
  std::vector<float*> arrays_;
};

class GpuSteps {
 public:
  // All arguments outlive this object. All work is enqueued on `stream`.
  GpuSteps(const EngineParts& parts, const GpuArrays& parameters, const GpuArrays& gradients, GpuBatches& batches,
           device::Stream stream);
  ~GpuSteps();  // waits for the stream
  GpuSteps(const GpuSteps&) = delete;
  GpuSteps& operator=(const GpuSteps&) = delete;

  // Enqueues a step on the slot's examples; local steps use `rate`. Throws Error.
  void enqueue(std::size_t slot, float rate);

  // Records the slot's step into a graph, if it ran kernel by kernel and can be expected to run again unchanged.
  // Throws nothing: if that is refused, reports it once and continues without. Requires: the slot's last step is done;
  // the stream does not wait for anything that this thread has yet to do.
  void capture(std::size_t slot);

  // Whether enqueueing adds nothing new to the GPU. New objects (kernels, graphs) may have to wait for the stream,
  // which then must not wait for this thread.
  bool is_known(std::size_t slot, float rate) const;

  // The mean loss of the slot's last batch. Requires: the step is done.
  float loss(std::size_t slot) const { return losses_.on_host()[slot]; }

  // Whether the rate of local steps depends on the global step: then no two steps are identical.
  bool has_changing_rates() const;

  // The operations in the graph that is a step; 0: its kernels are enqueued one by one.
  std::size_t graph_operations() const { return std::max(steps_[0].operations, steps_[1].operations); }

 private:
  struct Step {
    device::Graph graph = nullptr;
    std::size_t operations = 0;  // in the graph
    float rate = 0.0F;           // the rate in the graph
    bool was_launched = false;
    bool has_run = false;  // kernel by kernel
    float ran_at = 0.0F;
  };

  void enqueue_kernels(std::size_t slot, float rate);
  void enqueue_local_steps(std::size_t slot, float rate);
  void drop_graph(Step& step);
  void check(device::CudaError error, const char* what) { device::check(cuda_, error, what); }

  EngineParts parts_;
  device::CudaCalls& cuda_;
  ModelKernels& kernels_;
  const GpuArrays &parameters_, &gradients_;
  GpuBatches& batches_;
  device::Stream stream_;
  std::optional<GpuArrays> own_;  // local steps: the worker's own copy
  GpuModel model_;
  device::PinnedMemory<float> losses_;
  std::array<Step, GpuBatches::kSlots> steps_;
  bool may_capture_;
};

}  // namespace ps_shm::train
