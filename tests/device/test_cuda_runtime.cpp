// CudaCalls by the CUDA runtime, with a driver that is older than the build: the linker replaces the runtime's
// functions by __wrap_ functions.
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>

#include <doctest/doctest.h>

#include "device/cuda_calls.hpp"

namespace {

cudaError_t g_pending = cudaSuccess;
unsigned g_driver = 12020;

cudaError_t answer_as_a_driver(unsigned version, void** function, cudaDriverEntryPointQueryResult* result) {
  *function = nullptr;
  *result = cudaDriverEntryPointSymbolNotFound;
  return g_pending = version > g_driver ? cudaErrorInvalidValue : cudaSuccess;
}

}  // namespace

extern "C" {
cudaError_t __wrap_cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned version, unsigned long long,
                                                    cudaDriverEntryPointQueryResult* result) {
  return answer_as_a_driver(version, function, result);
}
cudaError_t __wrap_cudaGetDriverEntryPoint(const char*, void** function, unsigned long long,
                                           cudaDriverEntryPointQueryResult* result) {
  return answer_as_a_driver(CUDART_VERSION, function, result);
}
cudaError_t __wrap_cudaGetLastError() {
  const cudaError_t pending = g_pending;
  g_pending = cudaSuccess;
  return pending;
}
}

using namespace ps_shm::device;

TEST_CASE("cuda runtime: calls that the driver is too old for are unsupported and leave no pending error") {
  CudaCalls& calls = cuda_calls();
  std::array<std::byte, 64> memory{};
  const std::array<void*, 2> to{memory.data(), memory.data() + 16};
  const std::array<const void*, 2> from{memory.data() + 32, memory.data() + 48};
  const std::array<std::size_t, 2> sizes{16, 16};
  CHECK(calls.copy_batch(to, from, sizes, nullptr) == kNotSupported);
  CHECK(calls.last_error() == kSuccess);
  const std::array operations{AtomicOperation::kFloatAdd};
  std::array<unsigned, 1> bits{};
  CHECK(calls.host_atomics(0, operations, bits) == kNotSupported);
  CHECK(calls.last_error() == kSuccess);
  CHECK_FALSE(calls.can_wait_value());
  CHECK(calls.wait_value(nullptr, memory.data(), 1) == kNotSupported);
}
