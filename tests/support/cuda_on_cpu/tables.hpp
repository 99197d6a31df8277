// The tables of kernels, as src/ fills them from kernels/, run on the CPU. Streams are on_cpu::Queues.
#pragma once

#include "device/transfer_kernels.hpp"
#include "grid.hpp"
#include "train/gpu/model_kernels.hpp"

namespace ps::on_cpu {

PS_ON_CPU_EXPORT device::TransferKernels& transfer_kernels();
PS_ON_CPU_EXPORT train::ModelKernels& model_kernels();

}  // namespace ps::on_cpu
