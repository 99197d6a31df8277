#include "tables.hpp"

namespace ps_shm::on_cpu {

device::TransferKernels& transfer_kernels() { return device::transfer_kernels(); }
train::ModelKernels& model_kernels() { return train::model_kernels(); }

}  // namespace ps_shm::on_cpu
