// The rows of an in-place variable, in whichever part they lie. Row r has index r along the first axis.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "shm/slots/inplace_slot.hpp"

namespace ps_shm::shm {

inline bool is_hashed(const VariableShm& record) noexcept {
  return record.parts > 1 && record.partition_by == static_cast<std::uint32_t>(PartitionBy::kHash);
}

// The rows of one part: local row i lies at `first + i * Rows::row_bytes`.
struct RowPart {
  InplaceVariable variable;
  std::byte* first;
  std::uint64_t begin;        // partitioned by range: the row of the variable that is its row 0
  std::uint64_t first_block;  // number of its block 0 among the blocks of all parts
};

class Rows {
 public:
  struct Place {
    const RowPart& part;
    std::uint64_t local;  // row within the part
  };

  // Requires: add_part() is called for each part in order, before anything else.
  explicit Rows(const VariableShm& first) noexcept
      : row_elements_(first.row_elements),
        row_bytes_(first.row_bytes),
        record_(1 + first.slots),
        rows_(first.whole_elements / first.row_elements),
        is_bfloat16_(first.dtype == static_cast<std::uint32_t>(DType::kBFloat16)),
        is_hashed_(shm::is_hashed(first)),
        block_elements_(first.piece_elements),
        block_shift_(static_cast<unsigned>(std::countr_zero(first.piece_elements / first.row_elements))),
        has_long_rows_(first.piece_elements % first.row_elements != 0) {}

  void add_part(std::byte* shard, const VariableShm& record) {
    const InplaceVariable variable(shard, record);
    parts_.push_back({variable, variable.first_row(), record.part_begin / row_elements_, blocks_});
    blocks_ += record.pieces;
  }

  std::uint64_t rows() const noexcept { return rows_; }
  std::uint64_t row_elements() const noexcept { return row_elements_; }  // values in a row
  std::uint64_t row_bytes() const noexcept { return row_bytes_; }        // distance between rows
  std::uint64_t record() const noexcept { return record_; }              // distance between elements, in numbers
  bool is_bfloat16() const noexcept { return is_bfloat16_; }             // the dtype of the numbers; else float32
  bool is_hashed() const noexcept { return is_hashed_; }                 // row r is row r / parts of part r % parts
  std::span<const RowPart> parts() const noexcept { return parts_; }
  std::uint64_t blocks() const noexcept { return blocks_; }

  // Requires: row < rows().
  Place find(std::uint64_t row) const noexcept {
    if (parts_.size() == 1) return {parts_.front(), row};
    if (is_hashed_) return {parts_[row % parts_.size()], row / parts_.size()};
    const auto after = std::upper_bound(parts_.begin(), parts_.end(), row,
                                        [](std::uint64_t wanted, const RowPart& part) { return wanted < part.begin; });
    return {after[-1], row - after[-1].begin};
  }
  std::byte* at(const Place& place) const noexcept { return place.part.first + place.local * row_bytes_; }

  // The block of the part in which the row lies or, for a row longer than a block, begins.
  std::uint64_t block(const Place& place) const noexcept {
    return has_long_rows_ ? place.local * row_elements_ / block_elements_ : place.local >> block_shift_;
  }

 private:
  std::uint64_t row_elements_, row_bytes_, record_, rows_;
  bool is_bfloat16_, is_hashed_;
  std::uint64_t block_elements_;
  unsigned block_shift_;
  bool has_long_rows_;
  std::uint64_t blocks_ = 0;
  std::vector<RowPart> parts_;
};

// Calls body(first element in the order of rows, first element in the order of parts) for each row of a hashed
// variable.
template <class Body>
void for_hashed_rows(const VariableShm& first, Body&& body) {
  const std::uint64_t rows = first.whole_elements / first.row_elements;
  std::uint64_t in_parts = 0;
  for (std::uint64_t part = 0; part < first.parts; ++part)
    for (std::uint64_t row = part; row < rows; row += first.parts, in_parts += first.row_elements)
      body(row * first.row_elements, in_parts);
}

// Convert values between the order of parts and the order of rows. Requires: is_hashed(first).
inline void order_by_rows(std::span<const float> by_parts, std::span<float> by_rows, const VariableShm& first) {
  for_hashed_rows(first, [&](std::uint64_t in_rows, std::uint64_t in_parts) {
    std::copy_n(by_parts.data() + in_parts, first.row_elements, by_rows.data() + in_rows);
  });
}
inline void order_by_parts(std::span<const float> by_rows, std::span<float> by_parts, const VariableShm& first) {
  for_hashed_rows(first, [&](std::uint64_t in_rows, std::uint64_t in_parts) {
    std::copy_n(by_rows.data() + in_rows, first.row_elements, by_parts.data() + in_parts);
  });
}

}  // namespace ps_shm::shm
