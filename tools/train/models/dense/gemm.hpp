// Products of dense row-major matrices: a BLAS wrapper for the few shapes that the models use.
//
// Progress: runs on the calling thread, once use_one_blas_thread() has been called. Allocates nothing.
#pragma once

#include <cstddef>

namespace ps_shm::train {

// A matrix in memory, row by row without gaps.
struct Matrix {
  const float* values;
  std::size_t rows;
  std::size_t columns;
};

// out = a b + scale out. Requires (here and below): inner sizes agree, out has the product's shape and overlaps
// neither. With scale 0, out may hold anything, NaN included.
void multiply(Matrix a, Matrix b, float scale, float* out);

// out = a^T b.
void multiply_transposed_left(Matrix a, Matrix b, float* out);

// out = a b^T.
void multiply_transposed_right(Matrix a, Matrix b, float* out);

// Sets each of `rows` rows of out to `row`, which has `columns` values.
void broadcast_row(const float* row, std::size_t rows, std::size_t columns, float* out);

// out = the sum of the rows of a.
void sum_rows(Matrix a, float* out);

// Many workers share the machine, each with few cores: they must not each start a thread per core for every product.
void use_one_blas_thread();

}  // namespace ps_shm::train
