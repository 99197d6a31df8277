// Sums the gradients of rows that occur several times in one push.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "update/hash.hpp"

namespace ps_shm {

class RowSums {
 public:
  static constexpr std::uint64_t kUnbounded = 0;  // of `rows`: ids are keys

  // hash: the job's. width: floats in a row. rows: ids are below it.
  RowSums(const update::KeyHash& hash, std::uint64_t width, std::uint64_t rows) noexcept
      : hash_(hash), width_(width), rows_(rows) {}

  // Sums the gradients of repeated ids in the order in which they occur. Afterwards each id occurs once, and the spans
  // point into buffers of this object. Returns whether the ids are now ascending; else they are in the order of first
  // appearance.
  [[nodiscard]] bool combine(std::span<const std::uint64_t>& ids, std::span<const float>& gradients);

 private:
  void combine_in_places(std::span<const std::uint64_t>& ids, std::span<const float>& gradients);
  void combine_by_hash(std::span<const std::uint64_t>& ids, std::span<const float>& gradients);
  void combine_in_order(std::span<const std::uint64_t>& ids, std::span<const float>& gradients);
  void sort(std::size_t count);

  update::KeyHash hash_;
  std::uint64_t width_, rows_;
  // A hash table of {call : 32, index among the unique ids : 32}, one place for each row, or {id : 32, index : 32} for
  // each gradient, which is sorted; and the results.
  std::vector<std::uint64_t> seen_, touched_, order_, sorted_, unique_;
  std::uint32_t call_ = 0;
  std::vector<float> places_, sums_;
};

}  // namespace ps_shm
