// What the GPU benchmark runs on: a GPU (box.cpp), or the fake of tests/support (tests/gpu/fake_box.cpp), with which
// the program itself is tested where there is no GPU.
#pragma once

#include <cstdint>

#include "device/cuda_calls.hpp"
#include "device/transfer_kernels.hpp"
#include "kernels/bulk_reads.hpp"
#include "train/gpu/model_kernels.hpp"

namespace ps_shm::bench {

device::CudaCalls& cuda();
device::TransferKernels& kernels();
train::ModelKernels& model_kernels();

// Enqueues: to[i] += 1, `rounds` times over, by adds that are atomic towards what runs on the same device alone.
device::CudaError add_on_device(float* to, std::uint32_t count, std::uint32_t rounds, device::Stream stream);

// Those of kernels/bulk_reads.hpp.
device::CudaError bulk_read_max_ring(std::uint32_t& ring_bytes);
device::CudaError bulk_read(const std::byte* from, std::byte* to, std::size_t bytes, const kernels::BulkReads& how,
                            device::Stream stream);

}  // namespace ps_shm::bench
