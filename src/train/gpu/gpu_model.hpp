// A model's gradient on a GPU: any chain of dense layers with rectified units between them and a softmax at the end.
//
// The layers are read off the parameters of the CPU's model, which is the reference: the same parameters in the same
// order, the gradient of the same bare loss, the same up to rounding. Everything is only enqueued. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/cuda_calls.hpp"
#include "device/resources.hpp"
#include "train/dense/model.hpp"
#include "train/gpu/model_kernels.hpp"

namespace ps::train {

// Examples in the GPU's memory.
struct GpuBatch {
  const float* images = nullptr;  // count x features
  const std::uint8_t* labels = nullptr;
  std::size_t count = 0;
};

class GpuModel {
 public:
  // With a workspace for batches of up to `largest_batch`, in the memory of the current device. Throws Error where that
  // is too small, or for a model that is no such chain.
  GpuModel(const Model& model, std::size_t largest_batch, device::CudaCalls& cuda, ModelKernels& kernels);

  // Enqueues: the gradients of the batch's mean loss are written (not: added), that loss to *loss. All addresses are
  // the device's; the arrays are the model's parameters. The kernels' products are prepared for `stream` by the caller.
  // Throws Error. Requires: batch.count is at least 1 and at most the largest.
  void enqueue(std::span<const float* const> parameters, const GpuBatch& batch, std::span<float* const> gradients,
               float* loss, device::Stream stream);

 private:
  struct Layer {
    int inputs = 0, outputs = 0;
    device::DeviceMemory<float> values;    // batch x outputs: what the layer gives; of the last one: logits
    device::DeviceMemory<float> gradient;  // of the loss by those; of the last one: it overwrites them
  };

  void check(device::CudaError error, const char* what) { device::check(cuda_, error, what); }

  device::CudaCalls& cuda_;
  ModelKernels& kernels_;
  std::vector<Layer> layers_;
};

}  // namespace ps::train
