// Where the CUDA toolkit of the build had no cuBLAS header: everything but the matrix products.
#include "device/products.hpp"
#include "ps/errors.hpp"

namespace ps::device {

void prepare_products(Stream) {
  throw Error(
      "cannot multiply on the GPU: cublas_v2.h was missing when this was built; install libcublas-dev of the CUDA "
      "toolkit and build again");
}

void release_products(Stream) {}

CudaError multiply(bool, bool, int, int, int, const float*, const float*, float, float*, Stream) {
  return kNotSupported;
}

}  // namespace ps::device
