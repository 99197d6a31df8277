// The fake of the GPU benchmark's machine.
#include <cstdlib>

#include "../../benches/gpu/box.hpp"
#include "shm/slots/inplace_slot.hpp"
#include "support/fake_cuda.hpp"

namespace ps_shm::bench {
namespace {

test::FakeCuda& fake() {
  static test::FakeCuda cuda(test::FakeBox{.native_atomics = true, .memory_bytes = std::size_t{2} << 30});
  return cuda;
}

}  // namespace

device::CudaCalls& cuda() { return fake(); }
device::TransferKernels& kernels() {
  static test::FakeKernels kernels(fake());
  return kernels;
}
train::ModelKernels& model_kernels() {
  static test::FakeModelKernels kernels(fake());
  return kernels;
}

device::CudaError add_on_device(float* to, std::uint32_t count, std::uint32_t rounds, device::Stream stream) {
  return fake().enqueue(stream, [=] {
    const std::vector<float> ones(count, 1.0F);
    for (std::uint32_t round = 0; round < rounds; ++round)
      shm::update_exact(to, ones.data(), count, [](float value, float one) { return value + one; });
  });
}

device::CudaError bulk_read_max_ring(std::uint32_t& ring_bytes) {
  if (std::getenv("PS_SHM_TEST_WITHOUT_BULK_COPIES") != nullptr) return device::kNotSupported;  // as of an older GPU
  return on_cpu::bulk_read_max_ring(ring_bytes);
}
device::CudaError bulk_read(const std::byte* from, std::byte* to, std::size_t bytes, const kernels::BulkReads& how,
                            device::Stream stream) {
  return on_cpu::bulk_read(from, to, bytes, how, stream);
}

}  // namespace ps_shm::bench
