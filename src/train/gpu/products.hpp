// Matrix products by cuBLAS, which is loaded when it is first asked for: nothing else needs it.
//
// Each stream has its own handle and its own workspace, so that products on one stream repeat bit by bit whatever runs
// on others, and can be recorded into graphs: cuBLAS's own workspace would be shared, and allocated at a bad time.
// Any thread may call; a stream belongs to one at a time.
#pragma once

#include "device/cuda_calls.hpp"

namespace ps::train {

// As in ModelKernels, where they are described.
void prepare_products(device::Stream stream);
void release_products(device::Stream stream);
device::CudaError multiply(bool a_transposed, bool b_transposed, int m, int n, int k, const float* a, const float* b,
                           float beta, float* out, device::Stream stream);

}  // namespace ps::train
