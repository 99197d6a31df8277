#include "train/data/sparse/sparse_cursor.hpp"

#include <fmt/format.h>

#include "ps_shm/errors.hpp"

namespace ps_shm::train {

void SparseCursor::fail_damaged() const {
  throw Error(
      fmt::format("{}: its cached binary form is damaged at byte {}; remove it from the cache folder, or run again",
                  data_.name(), kSparseDataOffset + 4 * at_),
      ErrorCode::kDamaged);
}

void SparseCursor::give_back() {
  release_pages(words_.data() + kept_, words_.data() + at_);
  kept_ = at_;
}

}  // namespace ps_shm::train
