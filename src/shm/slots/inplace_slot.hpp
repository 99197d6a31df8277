// In-place variables: contiguous elements that every process updates where they are (inplace_elements.hpp).
//
// Each block of rows has a counter of pushes, from which staleness is measured (invariant.I5). A pull reads it before
// the block (inplace.P3), and a push increments it after the block (inplace.P2). A variable of one element lies in the
// word of its counter, so that one exchange changes both (inplace.P4). Pushes of single rows would contend for that
// word; they are counted for each block and rank (inplace.P5).
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "ps_shm/types.hpp"
#include "shm/segment/layout.hpp"
#include "shm/slots/inplace_bfloat16.hpp"
#include "shm/slots/inplace_elements.hpp"

namespace ps_shm::shm {

// The word of a variable of one element. Its counter wraps after 2^32 pushes.
static_assert(std::endian::native == std::endian::little, "the element is the word's first half");
constexpr std::uint64_t make_scalar(std::uint32_t pushes, float value) noexcept {
  return std::uint64_t{pushes} << 32 | std::bit_cast<std::uint32_t>(value);
}
constexpr float scalar_value(std::uint64_t word) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(word));
}
constexpr std::uint32_t scalar_pushes(std::uint64_t word) noexcept { return static_cast<std::uint32_t>(word >> 32); }

class InplaceVariable {
 public:
  InplaceVariable(std::byte* shard, const VariableShm& variable) noexcept
      : counters_(reinterpret_cast<PieceWordShm*>(shard + variable.words_offset)),
        row_counts_(reinterpret_cast<AtomicShm<std::uint64_t>*>(shard + variable.row_counts_offset)),
        elements_(shard + variable.data_offset),
        variable_(variable) {}

  // Its numbers are of float32 or of bfloat16.
  bool is_bfloat16() const noexcept { return variable_.dtype == static_cast<std::uint32_t>(DType::kBFloat16); }
  std::uint64_t number_bytes() const noexcept { return is_bfloat16() ? sizeof(BFloat16Bits) : sizeof(float); }
  // Row 0. Rows are `row_bytes` bytes apart, the elements of a row `record()` numbers.
  std::byte* first_row() const noexcept { return elements_; }
  // The same. Requires: not is_bfloat16().
  float* elements() const noexcept { return reinterpret_cast<float*>(elements_); }
  std::uint64_t rows() const noexcept { return variable_.elements / variable_.row_elements; }
  std::uint64_t row_elements() const noexcept { return variable_.row_elements; }
  std::uint64_t row_bytes() const noexcept { return variable_.row_bytes; }
  std::uint64_t record() const noexcept { return 1 + variable_.slots; }
  bool has_row_state() const noexcept { return (variable_.flags & kRowState) != 0; }
  // Where the state of a row lies. Requires: has_row_state().
  float* row_state(std::byte* row) const noexcept {
    return is_bfloat16() ? state_behind(BFloat16Row<RoundToNearest>{row, {}}, row_elements())
                         : state_behind(reinterpret_cast<float*>(row), row_elements());
  }
  // Whether element i is float i, that is, no state lies between the elements.
  bool is_plain() const noexcept { return !is_bfloat16() && row_bytes() == row_elements() * sizeof(float); }

  std::uint64_t blocks() const noexcept { return variable_.pieces; }
  std::uint64_t block_begin(std::uint64_t block) const noexcept { return block * variable_.piece_elements; }
  std::uint64_t block_size(std::uint64_t block) const noexcept {
    return std::min(variable_.piece_elements, variable_.elements - block_begin(block));
  }
  bool is_scalar() const noexcept { return variable_.elements == 1 && is_plain(); }
  std::uint64_t pushes(std::uint64_t block) const noexcept {
    const std::uint64_t word = counters_[block].word.load_acquire();  // (inplace.P3) pairs with inplace.P2, inplace.P4
    return is_scalar() ? scalar_pushes(word) : word;
  }
  // The largest count before the counter wraps: differences of counts are masked with it.
  static constexpr std::uint64_t kScalarPushesMask = 0xffffffff;
  std::uint64_t pushes_mask() const noexcept { return is_scalar() ? kScalarPushesMask : ~std::uint64_t{0}; }

  // How often a rank has pushed rows of each block. Only the rank's owner writes it, so counting costs other processes
  // nothing until they read it. Requires: has_row_counts(variable).
  AtomicShm<std::uint64_t>* row_counts(std::uint32_t rank) const noexcept {
    return row_counts_ + rank * row_counts_stride(variable_);
  }
  std::uint64_t row_pushes(std::uint64_t block, std::uint32_t rank) const noexcept {
    return row_counts(rank)[block].load_relaxed();  // relaxed (inplace.P5): diagnostic only
  }

  // Calls body(place of the first element, number of the block's elements before it, number of elements) for each
  // contiguous range of a block.
  template <class Body>
  void for_rows(std::uint64_t block, Body&& body) const noexcept {
    const std::uint64_t begin = block_begin(block), end = begin + block_size(block);
    const std::uint64_t record_bytes = record() * number_bytes();
    if (row_bytes() == row_elements() * record_bytes)
      return body(elements_ + begin * record_bytes, std::uint64_t{0}, end - begin);
    for (std::uint64_t at = begin; at < end;) {
      const std::uint64_t row = at / row_elements(), column = at % row_elements();
      const std::uint64_t count = std::min(row_elements() - column, end - at);
      body(elements_ + row * row_bytes() + column * record_bytes, at - begin, count);
      at += count;
    }
  }

  // Copies a block; returns how many pushes it had when the copy began. Wait-free. No element is torn.
  template <class ValueOf>
  std::uint64_t pull_block(std::uint64_t block, float* out, const ValueOf& value_of) const noexcept {
    if (is_scalar()) return pull_scalar(*out);
    const std::uint64_t pushed = pushes(block);
    if (is_bfloat16())
      for_rows(block, [&](const std::byte* from, std::uint64_t begin, std::uint64_t count) {
        read_bfloat16(out + begin, from, record(), count, value_of);
      });
    else
      for_rows(block, [&](const std::byte* from, std::uint64_t begin, std::uint64_t count) {
        read_elements(out + begin, reinterpret_cast<const float*>(from), record(), count, value_of);
      });
    return pushed;
  }

  // For a variable of one element: its value and the number of pushes so far. Wait-free.
  std::uint64_t pull_scalar(float& out) const noexcept {
    const std::uint64_t word = counters_->word.load_acquire();  // (inplace.P4)
    out = scalar_value(word);
    return scalar_pushes(word);
  }

  // For a variable of one element: value = update(value, gradient). Returns the number of pushes before. Exact is
  // lock-free.
  template <class Update>
  std::uint64_t push_scalar(float gradient, Adds adds, const Update& update) noexcept {
    auto& shared = counters_->word;
    if (adds == Adds::kRacy) {
      update_racy(elements(), &gradient, 1, update);
      fault_point(FaultPoint::kInplaceBlock);
      return scalar_pushes(shared.fetch_add_acq_rel(std::uint64_t{1} << 32));  // (inplace.P4)
    }
    std::uint64_t old = shared.load_relaxed();  // relaxed: the exchange checks it
    fault_point(FaultPoint::kInplaceElement);
    for (;;) {
      float value = scalar_value(old);
      update_record(update, &value, gradient);
      if (shared.try_exchange_acq_rel(old, make_scalar(scalar_pushes(old) + 1, value))) break;  // (inplace.P4)
    }
    fault_point(FaultPoint::kInplaceCounted);
    return scalar_pushes(old);
  }

  struct AsFloats {
    float* operator()(std::byte* place, std::uint64_t) const noexcept { return reinterpret_cast<float*>(place); }
  };
  // Returns how many pushes the block had before this one. row_at(place, begin): what update_row() gets for a range of
  // for_rows(). Requires: one for bfloat16, if is_bfloat16().
  template <class Update, class RowAt = AsFloats>
  std::uint64_t push_block(std::uint64_t block, const float* gradient, Adds adds, const Update& update,
                           const RowAt& row_at = {}) noexcept {
    if constexpr (floats_of<Update>() == 1 && !requires { update.with_state(0.0F); })
      if (is_scalar()) return push_scalar(*gradient, adds, update);
    for_rows(block, [&](std::byte* target, std::uint64_t begin, std::uint64_t count) {
      update_row(row_at(target, begin), gradient + begin, count, adds, update);
    });
    fault_point(FaultPoint::kInplaceBlock);
    return count_push(block);
  }

  // Counts a push whose updates are done. Returns how many pushes the block had before. Requires: not a scalar.
  std::uint64_t count_push(std::uint64_t block) noexcept {
    const std::uint64_t before = counters_[block].word.fetch_add_acq_rel(1);  // (inplace.P2) pairs with inplace.P3
    fault_point(FaultPoint::kInplaceCounted);
    return before;
  }

  // Where the block's counter lies, for a GPU that reads it.
  const std::byte* counter_place(std::uint64_t block) const noexcept {
    return reinterpret_cast<const std::byte*>(&counters_[block].word);
  }

 private:
  PieceWordShm* counters_;
  AtomicShm<std::uint64_t>* row_counts_;
  std::byte* elements_;
  const VariableShm& variable_;
};

}  // namespace ps_shm::shm
