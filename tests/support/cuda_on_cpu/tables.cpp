#include "tables.hpp"

namespace ps_shm::on_cpu {

device::TransferKernels& transfer_kernels() { return device::transfer_kernels(); }
train::ModelKernels& model_kernels() { return train::model_kernels(); }
device::CudaError bulk_read_max_ring(std::uint32_t& ring_bytes) { return kernels::bulk_read_max_ring(ring_bytes); }
device::CudaError bulk_read(const std::byte* from, std::byte* to, std::size_t bytes, const kernels::BulkReads& how,
                            device::Stream stream) {
  return kernels::bulk_read(from, to, bytes, how, stream);
}

}  // namespace ps_shm::on_cpu
