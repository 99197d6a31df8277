#include "box.hpp"

#include "device_adds.hpp"

namespace ps_shm::bench {

device::CudaCalls& cuda() { return device::cuda_calls(); }
device::TransferKernels& kernels() { return device::transfer_kernels(); }
train::ModelKernels& model_kernels() { return train::model_kernels(); }

device::CudaError add_on_device(float* to, std::uint32_t count, std::uint32_t rounds, device::Stream stream) {
  return launch_device_adds(to, count, rounds, stream);
}

device::CudaError bulk_read_max_ring(std::uint32_t& ring_bytes) { return kernels::bulk_read_max_ring(ring_bytes); }
device::CudaError bulk_read(const std::byte* from, std::byte* to, std::size_t bytes, const kernels::BulkReads& how,
                            device::Stream stream) {
  return kernels::bulk_read(from, to, bytes, how, stream);
}

}  // namespace ps_shm::bench
