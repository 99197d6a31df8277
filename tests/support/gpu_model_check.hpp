// Compares a model's gradient on a GPU with the CPU's, for any table of kernels.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "device/resources.hpp"
#include "train/gpu/gpu_model.hpp"

namespace ps_shm::test {

template <class T>
device::DeviceMemory<T> on_device(device::CudaCalls& cuda, const std::vector<T>& values, device::Stream stream) {
  device::DeviceMemory<T> memory(cuda, values.size());
  device::check(cuda, cuda.copy(memory.on_device(), values.data(), memory.bytes(), stream), "copy to the device");
  device::check(cuda, cuda.synchronize(stream), "copy to the device");
  return memory;
}

template <class T>
std::vector<T> from_device(device::CudaCalls& cuda, const device::DeviceMemory<T>& memory, device::Stream stream) {
  std::vector<T> values(memory.count());
  device::check(cuda, cuda.copy(values.data(), memory.on_device(), memory.bytes(), stream), "copy from the device");
  device::check(cuda, cuda.synchronize(stream), "copy from the device");
  return values;
}

// Waits for enqueued work, however a test ends, before the memory that it uses is freed.
struct Ending {
  device::CudaCalls& cuda;
  train::ModelKernels& kernels;
  device::Stream stream;
  ~Ending() {
    static_cast<void>(cuda.synchronize(stream));
    kernels.release_products(stream);
  }
};

// Loss and gradients of `batch` random examples, with a workspace that is large enough for more. Both sides sum in
// float32, each in its own order; the tolerance is relative to the largest gradient of a parameter.
inline void check_gpu_gradient(const std::string& name, std::size_t batch, std::size_t features, std::size_t classes,
                               device::CudaCalls& cuda, train::ModelKernels& kernels) {
  CAPTURE(name);
  CAPTURE(batch);
  CAPTURE(features);
  CAPTURE(classes);
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  std::mt19937_64 generator(batch * 31 + features);
  std::vector<float> images(batch * features);
  std::vector<std::uint8_t> labels(batch);
  for (float& value : images) value = static_cast<float>(generator() >> 40) * 0x1.0p-24F;
  for (std::uint8_t& label : labels) label = static_cast<std::uint8_t>(generator() % classes);

  const auto model = train::make_model(name, features, classes);
  const std::size_t count = model->parameters().size();
  std::vector<std::vector<float>> values(count), expected(count);
  std::vector<const float*> parameters;
  std::vector<float*> gradients;
  for (std::size_t i = 0; i < count; ++i) {
    values[i].resize(model->parameters()[i].count());
    model->initialize(i, 5, values[i]);
    for (float& value : values[i]) value += 0.01F;  // biases should differ from 0, too
    expected[i].assign(values[i].size(), kNaN);
    parameters.push_back(values[i].data());
    gradients.push_back(expected[i].data());
  }
  const float loss = model->gradient(parameters, {batch, images, labels}, gradients);

  device::OwnStream stream(cuda);
  const auto on = [&](const auto& host) { return on_device(cuda, host, stream.get()); };
  const auto images_there = on(images);
  const auto labels_there = on(labels);
  const auto loss_there = on(std::vector<float>{kNaN});
  std::vector<device::DeviceMemory<float>> parameters_there, gradients_there;
  for (std::size_t i = 0; i < count; ++i) {
    parameters_there.push_back(on(values[i]));
    gradients_there.push_back(on(std::vector<float>(values[i].size(), kNaN)));
    parameters[i] = parameters_there[i].on_device();
    gradients[i] = gradients_there[i].on_device();
  }
  train::GpuModel there(*model, batch + 3, cuda, kernels);
  kernels.prepare_products(stream.get());
  const Ending ending{cuda, kernels, stream.get()};
  for (int round = 0; round < 2; ++round)  // the state that the first round leaves in the workspace does not matter
    there.enqueue(parameters, {images_there.on_device(), labels_there.on_device(), batch}, gradients,
                  loss_there.on_device(), stream.get());
  CHECK(double(from_device(cuda, loss_there, stream.get())[0]) == doctest::Approx(double(loss)).epsilon(1e-5));
  for (std::size_t i = 0; i < count; ++i) {
    CAPTURE(model->parameters()[i].name);
    const std::vector<float> found = from_device(cuda, gradients_there[i], stream.get());
    float largest = 0, worst = 0;
    bool is_finite = true;
    for (std::size_t k = 0; k < found.size(); ++k) {
      largest = std::max(largest, std::abs(expected[i][k]));
      worst = std::max(worst, std::abs(found[k] - expected[i][k]));
      is_finite = is_finite && std::isfinite(found[k]);
    }
    CHECK(is_finite);
    CHECK(largest > 0);
    CHECK(worst <= 1e-5F * std::max(largest, 1e-3F) * std::sqrt(float(batch)));
  }
}

// Sizes without common factors.
inline void check_gpu_gradients(device::CudaCalls& cuda, train::ModelKernels& kernels) {
  for (const char* name : {"softmax", "mlp"}) {
    check_gpu_gradient(name, 1, 1, 2, cuda, kernels);
    check_gpu_gradient(name, 1, 64, 10, cuda, kernels);
    check_gpu_gradient(name, 7, 13, 3, cuda, kernels);
    check_gpu_gradient(name, 33, 65, 11, cuda, kernels);
    check_gpu_gradient(name, 101, 784, 10, cuda, kernels);
    check_gpu_gradient(name, 2, 300, 256, cuda, kernels);
  }
}

}  // namespace ps_shm::test
