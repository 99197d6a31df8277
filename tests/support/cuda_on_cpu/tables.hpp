// The tables of kernels, which src/ fills from kernels/, run on the CPU. Streams are on_cpu::Queues.
#pragma once

#include "device/transfer_kernels.hpp"
#include "grid.hpp"
#include "train/gpu/model_kernels.hpp"

namespace ps_shm::on_cpu {

PS_SHM_ON_CPU_EXPORT device::TransferKernels& transfer_kernels();
PS_SHM_ON_CPU_EXPORT train::ModelKernels& model_kernels();

}  // namespace ps_shm::on_cpu
