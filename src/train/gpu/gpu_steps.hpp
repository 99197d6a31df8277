// What a step computes on a GPU, from pulled parameters to what is to be pushed: a gradient, or the way that some local
// steps have gone. Recorded into a graph once it has run, so that enqueueing it again costs one call.
//
// The pulled parameters are only read, so a step whose parameters have changed is simply enqueued again. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "device/resources.hpp"
#include "train/engine.hpp"
#include "train/gpu/gpu_batches.hpp"
#include "train/gpu/gpu_model.hpp"

namespace ps::train {

// Values of all parameters of a model in one piece of device memory, each aligned to 256 bytes.
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
  // All of it outlives this object. `stream` is what everything is enqueued on.
  GpuSteps(const EngineParts& parts, const GpuArrays& parameters, const GpuArrays& gradients, GpuBatches& batches,
           device::Stream stream);
  ~GpuSteps();  // waits for the stream
  GpuSteps(const GpuSteps&) = delete;
  GpuSteps& operator=(const GpuSteps&) = delete;

  // Enqueues a step on the slot's examples; local steps go by `rate`. Throws Error.
  void enqueue(std::size_t slot, float rate);

  // Records the slot's step into a graph, where it has run kernel by kernel and can be expected to run again as it was.
  // Throws nothing: where that is refused, says so once and goes on without. Requires: the slot's last step is done;
  // the stream waits for nothing that this thread has yet to do.
  void capture(std::size_t slot);

  // Whether enqueueing brings nothing new to the GPU. What is new (kernels, graphs) may have to wait for the stream,
  // which must not wait for this thread then.
  bool is_known(std::size_t slot, float rate) const;

  // The mean loss of the slot's last batch. Requires: the step is done.
  float loss(std::size_t slot) const { return losses_.on_host()[slot]; }

  // Whether the rate of local steps depends on the global step: then no two steps are alike.
  bool has_changing_rates() const;

  bool is_captured() const { return steps_[0].graph != nullptr || steps_[1].graph != nullptr; }

 private:
  struct Step {
    device::Graph graph = nullptr;
    float rate = 0.0F;  // that the graph goes by
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

}  // namespace ps::train
