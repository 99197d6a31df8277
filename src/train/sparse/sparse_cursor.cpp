#include "train/sparse/sparse_cursor.hpp"

#include <fmt/format.h>

#include "ps/errors.hpp"

namespace ps::train {

void SparseCursor::fail_damaged() const {
  throw Error(fmt::format("{}: its binary form is damaged at byte {}; remove it from the cache's folder, or run again",
                          data_.name(), kSparseDataOffset + 4 * at_));
}

void SparseCursor::give_back() {
  release_pages(words_.data() + kept_, words_.data() + at_);
  kept_ = at_;
}

}  // namespace ps::train
