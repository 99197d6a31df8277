#include "train/models/dense/gemm.hpp"

#include <cblas.h>

#include <algorithm>

namespace ps_shm::train {
namespace {

// The sizes of models and batches are limited at their creation, far below 2^31.
blasint blas_size(std::size_t value) { return static_cast<blasint>(value); }

void gemm(CBLAS_TRANSPOSE transpose_a, CBLAS_TRANSPOSE transpose_b, std::size_t inner, Matrix a, Matrix b, float scale,
          std::size_t out_rows, std::size_t out_columns, float* out) {
  cblas_sgemm(CblasRowMajor, transpose_a, transpose_b, blas_size(out_rows), blas_size(out_columns), blas_size(inner),
              1.0F, a.values, blas_size(a.columns), b.values, blas_size(b.columns), scale, out, blas_size(out_columns));
}

}  // namespace

void multiply(Matrix a, Matrix b, float scale, float* out) {
  gemm(CblasNoTrans, CblasNoTrans, a.columns, a, b, scale, a.rows, b.columns, out);
}

void multiply_transposed_left(Matrix a, Matrix b, float* out) {
  if (a.rows == 1) {  // a batch of one: for such a product BLAS takes three times as long, for the same bits
    for (std::size_t i = 0; i < a.columns; ++i)
      for (std::size_t j = 0; j < b.columns; ++j) out[i * b.columns + j] = a.values[i] * b.values[j];
    return;
  }
  gemm(CblasTrans, CblasNoTrans, a.rows, a, b, 0.0F, a.columns, b.columns, out);
}

void multiply_transposed_right(Matrix a, Matrix b, float* out) {
  gemm(CblasNoTrans, CblasTrans, a.columns, a, b, 0.0F, a.rows, b.rows, out);
}

void broadcast_row(const float* row, std::size_t rows, std::size_t columns, float* out) {
  for (std::size_t i = 0; i < rows; ++i) std::copy_n(row, columns, out + i * columns);
}

void sum_rows(Matrix a, float* out) {
  std::fill_n(out, a.columns, 0.0F);
  for (std::size_t i = 0; i < a.rows; ++i) {
    for (std::size_t j = 0; j < a.columns; ++j) out[j] += a.values[i * a.columns + j];
  }
}

void use_one_blas_thread() { openblas_set_num_threads(1); }

}  // namespace ps_shm::train
