// The real tables: without CUDA or a GPU every call returns an error and describes it.
#include "device/cuda_calls.hpp"

#include <array>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "device/transfer_kernels.hpp"
#include "ps_shm/errors.hpp"
#include "train/gpu/model_kernels.hpp"

namespace {

using namespace ps_shm::device;

bool has_gpu() {
  int count = 0;
  return cuda_calls().device_count(count) == kSuccess && count > 0;
}

TEST_CASE("cuda calls: a build with CUDA reports its version, a build without CUDA reports version 0") {
  CHECK(cuda_calls().is_built() == (cuda_calls().built_for() != 0));
  if (cuda_calls().is_built()) CHECK(cuda_calls().built_for() >= 12000);
}

TEST_CASE("cuda calls: errors have descriptions") {
  const std::string text = cuda_calls().error_text(kNoDevice);
  CHECK(text.find(cuda_calls().is_built() ? "cudaErrorNoDevice: " : "without CUDA") != std::string::npos);
  CHECK(cuda_calls().error_text(kInsufficientDriver) != text);
  CHECK_FALSE(cuda_calls().error_text(-12345).empty());
}

#define CHECK_FAILS(call)                         \
  do {                                            \
    const CudaError error = (call);               \
    CHECK(error != kSuccess);                     \
    CHECK_FALSE(calls.error_text(error).empty()); \
    static_cast<void>(calls.last_error());        \
  } while (false)

TEST_CASE("cuda calls: without a GPU all calls but the driver's version fail and do not change their results") {
  if (has_gpu()) {
    MESSAGE("skipped: there is a GPU");
    return;
  }
  CudaCalls& calls = cuda_calls();
  static_cast<void>(calls.last_error());
  int number = -5, version = -5;
  if (calls.driver_version(version) != kSuccess) CHECK(version == -5);
  CHECK_FAILS(calls.properties(0, *std::make_unique<DeviceProperties>()));
  CHECK_FAILS(calls.attribute(Attribute::kHostNativeAtomics, 0, number));
  CHECK_FAILS(calls.can_access_peer(0, 1, number));
  const std::array operations{AtomicOperation::kFloatAdd};
  std::array<unsigned, 1> bits{77};
  CHECK_FAILS(calls.host_atomics(0, operations, bits));
  CHECK(bits[0] == 77);
  CHECK_FAILS(calls.set_device(0));
  CHECK_FAILS(calls.yield_in_waits(0));
  std::size_t free_bytes = 77, total_bytes = 77;
  CHECK_FAILS(calls.memory_info(free_bytes, total_bytes));
  CHECK((free_bytes == 77 && total_bytes == 77));

  std::vector<std::byte> memory(3 << 12);
  void* address = nullptr;
  CHECK_FAILS(calls.host_register(memory.data(), memory.size(), kRegisterPortable | kRegisterMapped));
  CHECK_FAILS(calls.host_unregister(memory.data()));
  CHECK_FAILS(calls.device_address(memory.data(), address));
  CHECK_FAILS(calls.allocate(64, address));
  CHECK_FAILS(calls.allocate_pinned(64, address));
  Stream stream = nullptr;
  Event event = nullptr;
  CHECK_FAILS(calls.create_stream(stream));
  CHECK_FAILS(calls.create_event(false, event));
  CHECK_FAILS(calls.copy(memory.data(), memory.data() + 64, 64, stream));
  const std::array<void*, 1> to{memory.data()};
  const std::array<const void*, 1> from{memory.data() + 64};
  const std::array<std::size_t, 1> sizes{64};
  CHECK_FAILS(calls.copy_batch(to, from, sizes, stream));
  CHECK_FALSE(calls.can_wait_value());
  CHECK_FAILS(calls.wait_value(stream, memory.data(), 1));
  CHECK_FAILS(calls.begin_capture(stream));
  CHECK(number == -5);
  CHECK((address == nullptr && stream == nullptr && event == nullptr));
}

TEST_CASE("gpu kernels: without a GPU nothing is enqueued, and matrix products report what is missing") {
  if (has_gpu()) {
    MESSAGE("skipped: there is a GPU");
    return;
  }
  CudaCalls& calls = cuda_calls();
  TransferKernels& transfers = transfer_kernels();
  ps_shm::train::ModelKernels& kernels = ps_shm::train::model_kernels();
  float value = 0.0F, other = 1.0F;
  std::uint8_t label = 0;
  std::uint32_t word = 0;
  std::uint64_t result = 0;
  const ps_shm::kernels::PulledPiece pulled{};
  const ps_shm::kernels::SentPiece sent{};
  const ps_shm::kernels::AddedPiece added{};
  CHECK_FAILS(transfers.pull_pieces(&pulled, 1, &result, {24, 64, 30}, nullptr));
  CHECK_FAILS(transfers.send_pieces(&sent, 1, &word, false, nullptr, ps_shm::kernels::kSenders, nullptr));
  CHECK_FAILS(transfers.add_pieces(&added, 1, 1.0F, 0.0F, false, nullptr));
  CHECK_FAILS(kernels.multiply(false, false, 1, 1, 1, &value, &value, 0.0F, &other, nullptr));
  CHECK_FAILS(kernels.bias_relu(&value, &other, 1, 1, nullptr));
  CHECK_FAILS(kernels.relu_gradient(&value, &other, 1, 1, &value, nullptr));
  CHECK_FAILS(kernels.softmax_cross_entropy(&value, &other, &label, 1, 1, &other, &value, nullptr));
  CHECK_FAILS(kernels.gather_rows(&value, &label, &word, 1, 1, &other, &label, nullptr));
  CHECK_FAILS(kernels.sgd_step(&value, &other, 1, 0.1F, 0.0F, 0.0F, 0.0F, nullptr));
  CHECK_FAILS(kernels.difference(&value, &value, 1.0F, &other, 1, nullptr));
  CHECK_FAILS(kernels.fill(&value, 1.0F, 1, nullptr));
  CHECK((value == 0.0F && other == 1.0F));

  std::string message;
  try {
    kernels.prepare_products(nullptr);
  } catch (const ps_shm::Error& error) {
    message = error.what();
  }
  INFO(message);
  CHECK(message.find("cannot") != std::string::npos);
  kernels.release_products(nullptr);  // nothing was prepared: no effect
  static_cast<void>(calls.last_error());
}

}  // namespace
