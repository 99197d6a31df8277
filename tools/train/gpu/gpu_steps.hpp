// What a step computes on a GPU, from pulled parameters to what is pushed: a gradient, or the difference made by some
// local steps. After its first run, where the link's transfers allow it, the step is recorded into a graph with its pull
// and push, so that enqueueing it again costs one call; and into a second one, with events, for steps that are timed.
//
// The pulled parameters are only read, so a step whose parameters have changed is simply enqueued again. One thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/gpu_link.hpp"
#include "device/resources.hpp"
#include "train/gpu/gpu_batches.hpp"
#include "train/gpu/gpu_model.hpp"
#include "train/gpu/gpu_timeline.hpp"
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

class PS_SHM_HIDDEN GpuSteps {
 public:
  // All arguments outlive this object. All work is enqueued on the link's stream.
  GpuSteps(const EngineParts& parts, const GpuArrays& parameters, const GpuArrays& gradients, GpuBatches& batches,
           GpuLink& link, GpuTimeline& timeline);
  ~GpuSteps();  // waits for the stream
  GpuSteps(const GpuSteps&) = delete;
  GpuSteps& operator=(const GpuSteps&) = delete;

  // Enqueues what a step computes of the slot's examples, kernel by kernel; local steps use `rate`. Throws Error.
  void enqueue(std::size_t slot, float rate);

  // Whether a graph of the step is ready for this slot and rate; here and below, with events if the step is sampled.
  bool has_graph(std::size_t slot, float rate) const;

  // Enqueues that graph instead of a pull, enqueue() and a push; `waits`: behind the link's gate, until it is opened.
  // Requires: has_graph(). Throws Error.
  void enqueue_graph(std::size_t slot, bool waits);

  // Records the slot's step into graphs, if it ran kernel by kernel and can be expected to run again unchanged. Throws
  // nothing: if that is refused, reports it once and continues without. Requires: the slot's last step is done; the
  // stream does not wait for anything that this thread has yet to do.
  void capture(std::size_t slot);

  // Whether enqueueing, of a graph or kernel by kernel, adds nothing new to the GPU. New objects (kernels, graphs) may
  // have to wait for the stream, which then must not wait for this thread.
  bool is_known(std::size_t slot, bool is_graph) const;

  // The mean loss of the slot's last batch. Requires: the step is done.
  float loss(std::size_t slot) const { return losses_.on_host()[slot]; }

  // Whether the rate of local steps depends on the global step: then no two steps are identical.
  bool has_changing_rates() const;

  // The operations in the graph of a step; 0: there is none.
  std::size_t graph_operations() const;

 private:
  struct Recorded {
    device::Graph graph = nullptr;
    std::size_t operations = 0;
    float rate = 0.0F;
    bool was_launched = false;
    std::uint64_t number = 0;  // the link's; of the last try, like the rate
  };
  struct Step {
    std::array<Recorded, 2> graphs;  // the second one with events
    bool has_run = false;            // kernel by kernel
    float ran_at = 0.0F;
  };

  const Recorded& graph_of(std::size_t slot) const { return steps_[slot].graphs[timeline_.is_sampled() ? 1 : 0]; }
  void enqueue_kernels(std::size_t slot, float rate);
  void enqueue_local_steps(std::size_t slot, float rate);
  bool is_current(const Recorded& recorded, float rate) const;
  bool record(std::size_t slot, bool is_timed, std::string& why);
  void drop(Recorded& recorded);
  void warn(const std::string& what, const std::string& why) const;
  void check(device::CudaError error, const char* what) { device::check(cuda_, error, what); }

  EngineParts parts_;
  device::CudaCalls& cuda_;
  ModelKernels& kernels_;
  const GpuArrays &parameters_, &gradients_;
  GpuBatches& batches_;
  GpuLink& link_;
  GpuTimeline& timeline_;
  device::Stream stream_;
  std::optional<GpuArrays> own_;  // local steps: the worker's own copy
  GpuModel model_;
  device::PinnedMemory<float> losses_;
  std::array<Step, GpuBatches::kSlots> steps_;
  bool may_capture_;
};

}  // namespace ps_shm::train
