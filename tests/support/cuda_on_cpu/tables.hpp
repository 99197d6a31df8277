// The tables of kernels, which src/ fills from kernels/, and the launchers of kernels/bulk_reads.hpp, run on the CPU.
// Streams are on_cpu::Queues.
#pragma once

#include "device/transfer_kernels.hpp"
#include "grid.hpp"
#include "kernels/bulk_reads.hpp"
#include "train/gpu/model_kernels.hpp"

namespace ps_shm::on_cpu {

PS_SHM_ON_CPU_EXPORT device::TransferKernels& transfer_kernels();
PS_SHM_ON_CPU_EXPORT train::ModelKernels& model_kernels();
PS_SHM_ON_CPU_EXPORT device::CudaError bulk_read_max_ring(std::uint32_t& ring_bytes);
PS_SHM_ON_CPU_EXPORT device::CudaError bulk_read(const std::byte* from, std::byte* to, std::size_t bytes,
                                                 const kernels::BulkReads& how, device::Stream stream);

}  // namespace ps_shm::on_cpu
