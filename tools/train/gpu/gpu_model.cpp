#include "train/gpu/gpu_model.hpp"

#include <fmt/format.h>

#include <cassert>
#include <limits>

#include "ps_shm/errors.hpp"

namespace ps_shm::train {
namespace {

// Sizes of models and batches are limited at their creation (make_model, checked_batch_size), far below 2^31.
int size(std::size_t value) {
  assert(value <= std::size_t{std::numeric_limits<int>::max()});
  return static_cast<int>(value);
}

}  // namespace

GpuModel::GpuModel(const Model& model, std::size_t largest_batch, device::CudaCalls& cuda, ModelKernels& kernels)
    : cuda_(cuda), kernels_(kernels) {
  const std::span<const ParameterSpec> specs = model.parameters();
  for (std::size_t i = 0; i + 1 < specs.size(); i += 2) {
    const std::vector<std::size_t>&weights = specs[i].shape, &biases = specs[i + 1].shape;
    if (weights.size() != 2 || biases != std::vector{weights[1]} ||
        (i > 0 && static_cast<int>(weights[0]) != layers_.back().outputs))
      throw Error(
          fmt::format("a GPU computes dense layers only: {} and {} do not form one", specs[i].name, specs[i + 1].name));
    Layer& layer = layers_.emplace_back();
    layer.inputs = size(weights[0]);
    layer.outputs = size(weights[1]);
    layer.values = {cuda, largest_batch * weights[1]};
    if (i + 2 < specs.size()) layer.gradient = {cuda, largest_batch * weights[1]};
  }
  if (layers_.empty() || specs.size() % 2 != 0)
    throw Error("a GPU computes dense layers only: this model has other layers");
}

void GpuModel::enqueue(std::span<const float* const> parameters, const GpuBatch& batch,
                       std::span<float* const> gradients, float* loss, device::Stream stream) {
  assert(parameters.size() == 2 * layers_.size() && gradients.size() == parameters.size());
  assert(batch.count > 0 && batch.count <= layers_[0].values.count() / static_cast<std::size_t>(layers_[0].outputs));
  const int rows = size(batch.count);
  const auto inputs = [&](std::size_t i) { return i == 0 ? batch.images : layers_[i - 1].values.on_device(); };

  const auto multiply_inputs = [&](std::size_t i) {
    const Layer& layer = layers_[i];
    check(kernels_.multiply(false, false, rows, layer.outputs, layer.inputs, inputs(i), parameters[2 * i], 0.0F,
                            layer.values.on_device(), stream),
          "multiply matrices");
  };

  const std::size_t last = layers_.size() - 1;
  for (std::size_t i = 0; i < last; ++i) {
    multiply_inputs(i);
    check(kernels_.bias_relu(layers_[i].values.on_device(), parameters[2 * i + 1], rows, layers_[i].outputs, stream),
          "add biases");
  }
  multiply_inputs(last);
  check(kernels_.softmax_cross_entropy(layers_[last].values.on_device(), parameters[2 * last + 1], batch.labels, rows,
                                       layers_[last].outputs, loss, gradients[2 * last + 1], stream),
        "compute the loss");
  for (std::size_t i = last;; --i) {
    const Layer& layer = layers_[i];
    const float* by_values = i < last ? layer.gradient.on_device() : layer.values.on_device();
    check(kernels_.multiply(true, false, layer.inputs, layer.outputs, rows, inputs(i), by_values, 0.0F,
                            gradients[2 * i], stream),
          "multiply matrices");
    if (i == 0) return;
    const Layer& below = layers_[i - 1];
    check(kernels_.multiply(false, true, rows, layer.inputs, layer.outputs, by_values, parameters[2 * i], 0.0F,
                            below.gradient.on_device(), stream),
          "multiply matrices");
    check(kernels_.relu_gradient(below.gradient.on_device(), below.values.on_device(), rows, below.outputs,
                                 gradients[2 * i - 1], stream),
          "compute a gradient");
  }
}

}  // namespace ps_shm::train
