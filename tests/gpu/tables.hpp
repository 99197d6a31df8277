// The tables that the tests of suite gpu run on: a GPU's (main.cpp), or those of the fake in tests/support, which runs
// the same kernels on the CPU (fake_main.cpp).
#pragma once

#include <cstring>
#include <vector>

#include <doctest/doctest.h>

#include "device/cuda_calls.hpp"
#include "device/resources.hpp"
#include "device/transfer_kernels.hpp"
#include "train/gpu/model_kernels.hpp"

namespace ps_shm::test {

device::CudaCalls& cuda();
device::TransferKernels& kernels();
train::ModelKernels& model_kernels();

// A stream, and memory that is filled and read through it.
class Bench {
 public:
  device::Stream stream() const { return stream_.get(); }

  void run(device::CudaError error) {
    INFO(cuda().error_text(error));
    REQUIRE(error == device::kSuccess);
    const device::CudaError end = cuda().synchronize(stream());
    INFO(cuda().error_text(end));
    REQUIRE(end == device::kSuccess);
  }
  template <class T>
  device::DeviceMemory<T> put(const std::vector<T>& values) {
    device::DeviceMemory<T> memory(cuda(), values.size());
    if (!values.empty()) run(cuda().copy(memory.on_device(), values.data(), memory.bytes(), stream()));
    return memory;
  }
  template <class T>
  std::vector<T> get(const device::DeviceMemory<T>& memory) {
    std::vector<T> values(memory.count());
    if (!values.empty()) run(cuda().copy(values.data(), memory.on_device(), memory.bytes(), stream()));
    return values;
  }

 private:
  device::OwnStream stream_{cuda()};
};

template <class T>
device::PinnedMemory<T> pinned(const std::vector<T>& values) {
  device::PinnedMemory<T> memory(cuda(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) memory.on_host()[i] = values[i];
  return memory;
}

// Compares bit by bit, except that any NaN equals any NaN.
inline bool is_same(float a, float b) { return std::memcmp(&a, &b, sizeof(float)) == 0 || (a != a && b != b); }
inline std::size_t differing(const std::vector<float>& a, const std::vector<float>& b) {
  std::size_t count = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) count += is_same(a[i], b[i]) ? 0 : 1;
  return count;
}

// Values from about -1 to 1, the same for the same seed.
inline std::vector<float> random_floats(std::size_t count, std::uint64_t seed) {
  std::vector<float> values(count);
  std::uint64_t state = seed * 2 + 1;
  for (float& value : values) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<float>(static_cast<std::int32_t>(state >> 32)) * 0x1.0p-31F;
  }
  return values;
}

}  // namespace ps_shm::test
