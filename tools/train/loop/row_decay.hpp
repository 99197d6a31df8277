// L2 regularisation that touches only the rows an example touches (Niu et al., Hogwild!, 2011, section 2).
//
// The objective is the mean loss + l2 / 2 ||w||^2. Of the n examples d_u touch row u, so if each of them adds
// l2 * n / d_u * w_u to its gradient, the mean over all is the gradient of that term: l2 * w_u.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "train/data/sparse/sparse_data.hpp"
#include "train/data/sparse/sparse_stream.hpp"

namespace ps_shm::train {

// How strongly: for a row's first float (a weight or a bias), and for the rest (factors).
struct RowL2 {
  float first = 0.0F, factors = 0.0F;
};

class RowDecay {
 public:
  // Counts the part's examples in one pass, unless both are 0. `rows`: of the table; those that are no features (a bias
  // row) are not regularised. Keys are counted in at most 2^22 cells, two for each, of which the smaller one is taken
  // (count-min, Cormode and Muthukrishnan 2005): among millions of keys, those that share both with others are regularised
  // less.
  RowDecay(const RowL2& l2, const SparseData& data, const SparsePart& part, std::size_t rows);

  bool is_on() const noexcept { return !of_row_.empty(); }
  const RowL2& l2() const noexcept { return l2_; }

  // n / d of a row: what multiplies its L2. Requires: is_on().
  float scale_of(std::uint32_t id) const noexcept { return of_row_[id]; }
  float scale_of(std::uint64_t key) const noexcept;

  // Adds to the gradients of an example's rows, each of `width` floats. Ids are 32-bit numbers of rows, or 64-bit keys.
  template <class Id>
  void add_to(std::span<const Id> ids, std::size_t width, const float* rows, float* gradients) const noexcept {
    if (!is_on()) return;
    for (const Id id : ids) {
      const float of_row = scale_of(id), of_factors = of_row * l2_.factors;
      *gradients++ += of_row * l2_.first * *rows++;
      for (std::size_t k = 1; k < width; ++k) *gradients++ += of_factors * *rows++;
    }
  }

 private:
  void count_keys(const SparseData& data, const SparsePart& part);

  RowL2 l2_;
  std::vector<float> of_row_;  // n / d; of keys: of a cell
};

}  // namespace ps_shm::train
