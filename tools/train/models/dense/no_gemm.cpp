// Replaces gemm.cpp in a build without OpenBLAS, such as the Python package's: its programs train no model themselves.
#include "ps_shm/errors.hpp"
#include "train/models/dense/gemm.hpp"

namespace ps_shm::train {
namespace {

[[noreturn]] void refuse() {
  throw Error("this build does not support dense models: it was built without OpenBLAS (-Dblas=false)");
}

}  // namespace

void multiply(Matrix, Matrix, float, float*) { refuse(); }
void multiply_transposed_left(Matrix, Matrix, float*) { refuse(); }
void multiply_transposed_right(Matrix, Matrix, float*) { refuse(); }
void broadcast_row(const float*, std::size_t, std::size_t, float*) { refuse(); }
void sum_rows(Matrix, float*) { refuse(); }
void use_one_blas_thread() {}

}  // namespace ps_shm::train
