// The parameters of the kernel of sparse models: plain data that both compilers read.
#pragma once

#include <cstdint>

#include "sparse_losses.hpp"

namespace ps_shm::kernels {

// The score of an example, from its rows and their values x.
enum class SparseScore : std::uint32_t {
  kLinear = 1,  // sum of w_i x_i, of rows {w}
  kPair = 2,    // mean + b_1 + b_2 + p_1 . p_2, of two rows {b, p}; of fewer rows: mean + b_1, or mean
  kFactors = 3  // mean + sum of w_i x_i + sum over pairs of (v_i . v_j) x_i x_j, of rows {w, v}
};

struct SparseForm {
  SparseScore score;
  SparseLoss loss;
  std::uint32_t width;  // floats of a row; kLinear: 1
  float mean;
};

// Examples whose rows follow each other: those of example i are begins[i] and following, up to begins[i + 1]. All
// addresses are device addresses.
struct SparseBatch {
  const std::uint64_t* begins;  // one more than there are examples
  const float* values;          // x of each row
  const float* scales;          // factor of the L2 of each row; nullptr: no L2
  const float* targets;         // of each example, as loss_at() takes it
  std::uint64_t examples;
  float l2_first, l2_factors;  // a row's gradient gets its scale * l2 * the row: the first float, and the others
};

}  // namespace ps_shm::kernels
