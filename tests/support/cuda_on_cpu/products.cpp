// The matrix products of cuBLAS, computed by OpenBLAS in stream order.
#include "train/gpu/products.hpp"

#include <cblas.h>

#include "grid.hpp"

namespace ps_shm::train {

// OpenBLAS's own threads may not be able to access the device's memory.
void prepare_products(device::Stream) { openblas_set_num_threads(1); }
void release_products(device::Stream) {}

device::CudaError multiply(bool a_transposed, bool b_transposed, int m, int n, int k, const float* a, const float* b,
                           float beta, float* out, device::Stream stream) {
  if (m == 0 || n == 0) return device::kSuccess;
  static const char kernel{};  // cuBLAS loads its own at first use
  const auto multiply_all = [=] {
    cblas_sgemm(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans, b_transposed ? CblasTrans : CblasNoTrans, m, n,
                k, 1.0F, a, a_transposed ? m : k, b, b_transposed ? k : n, beta, out, n);
  };
  return on_cpu::enqueue(reinterpret_cast<cudaStream_t>(stream), multiply_all, &kernel);
}

}  // namespace ps_shm::train
