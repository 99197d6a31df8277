// A model's gradient on a GPU: any chain of dense layers with rectified linear units in between and a final softmax.
//
// The layers are derived from the parameters of the CPU's model, which is the reference: the same parameters, the same
// order, the gradient of the same bare loss, equal up to rounding. All work is only enqueued. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/cuda_calls.hpp"
#include "device/resources.hpp"
#include "train/gpu/model_kernels.hpp"
#include "train/models/dense/model.hpp"

namespace ps_shm::train {

// Examples in the GPU's memory.
struct GpuBatch {
  const float* images = nullptr;  // count x features
  const std::uint8_t* labels = nullptr;
  std::size_t count = 0;
};

class GpuModel {
 public:
  // With a workspace for batches of up to `largest_batch`, in the memory of the current device. Throws Error if that
  // is too small, or if the model is not such a chain.
  GpuModel(const Model& model, std::size_t largest_batch, device::CudaCalls& cuda, ModelKernels& kernels);

  // Enqueues: writes (does not add) the gradients of the batch's mean loss, and that loss to *loss. All addresses are
  // device addresses; the arrays are the model's parameters. The caller prepares the kernels' products for `stream`.
  // Throws Error. Requires: batch.count is at least 1 and at most the largest.
  void enqueue(std::span<const float* const> parameters, const GpuBatch& batch, std::span<float* const> gradients,
               float* loss, device::Stream stream);

 private:
  struct Layer {
    int inputs = 0, outputs = 0;
    device::DeviceMemory<float> values;    // batch x outputs: the layer's output; for the last layer, the logits
    device::DeviceMemory<float> gradient;  // of the loss by those; of the last one: it overwrites them
  };

  void check(device::CudaError error, const char* what) { device::check(cuda_, error, what); }

  device::CudaCalls& cuda_;
  ModelKernels& kernels_;
  std::vector<Layer> layers_;
};

}  // namespace ps_shm::train
