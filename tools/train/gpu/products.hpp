// Matrix products by cuBLAS, which is loaded on first use: nothing else needs it.
//
// Each stream has its own handle and workspace, so that products on one stream repeat bit by bit whatever runs
// on others, and can be recorded into graphs: cuBLAS's own workspace would be shared, and allocated at a bad time.
// Thread-safe; a stream belongs to one thread at a time.
#pragma once

#include "device/cuda_calls.hpp"

namespace ps_shm::train {

// As in ModelKernels, where they are described.
void prepare_products(device::Stream stream);
void release_products(device::Stream stream);
device::CudaError multiply(bool a_transposed, bool b_transposed, int m, int n, int k, const float* a, const float* b,
                           float beta, float* out, device::Stream stream);

}  // namespace ps_shm::train
