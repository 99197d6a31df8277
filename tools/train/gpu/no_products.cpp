// For builds whose CUDA toolkit has no cuBLAS header: everything except the matrix products.
#include "ps_shm/errors.hpp"
#include "train/gpu/products.hpp"

namespace ps_shm::train {

void prepare_products(device::Stream) {
  throw Error(
      "cannot multiply on the GPU: cublas_v2.h was missing when this was built; install libcublas-dev of the CUDA "
      "toolkit and build again",
      ErrorCode::kDevice);
}

void release_products(device::Stream) {}

device::CudaError multiply(bool, bool, int, int, int, const float*, const float*, float, float*, device::Stream) {
  return device::kNotSupported;
}

}  // namespace ps_shm::train
