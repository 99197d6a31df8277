// L2 regularisation that touches only the rows an example touches (Niu et al., Hogwild!, 2011, section 2).
//
// The objective is the mean loss + l2 / 2 ||w||^2. Of the n examples d_u touch row u, so if each of them adds
// l2 * n / d_u * w_u to its gradient, the mean over all is the gradient of that term: l2 * w_u.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "train/sparse/sparse_data.hpp"
#include "train/sparse/sparse_stream.hpp"

namespace ps::train {

class RowDecay {
 public:
  // Counts the part's examples in one pass, unless l2 is 0. `rows`: of the table; those that are no feature (a bias) are
  // not regularised.
  RowDecay(float l2, const SparseData& data, const SparsePart& part, std::size_t rows);

  // Adds to the gradients of an example's rows, of `width` floats each.
  void add_to(std::span<const std::uint32_t> ids, std::size_t width, const float* rows,
              float* gradients) const noexcept {
    if (of_row_.empty()) return;
    for (const std::uint32_t id : ids) {
      const float decay = of_row_[id];
      for (std::size_t k = 0; k < width; ++k) *gradients++ += decay * *rows++;
    }
  }

 private:
  std::vector<float> of_row_;  // l2 * n / d
};

}  // namespace ps::train
