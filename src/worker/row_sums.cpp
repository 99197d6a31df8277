#include "worker/row_sums.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

namespace ps_shm {
namespace {

[[gnu::always_inline]] inline void add(float* sum, const float* row, std::size_t width, bool is_first) noexcept {
  for (std::size_t k = 0; k < width; ++k) sum[k] = (is_first ? 0.0F : sum[k]) + row[k];
}

}  // namespace

// In a small table each row has a place for its sum, and the sums come out in ascending order.
void RowSums::combine_in_places(std::span<const std::uint64_t>& ids, std::span<const float>& gradients) {
  const std::size_t width = width_, rows = rows_;
  places_.resize(rows * width);
  touched_.resize((rows + 63) / 64);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const float* const row = gradients.data() + i * width;
    float* const sum = places_.data() + ids[i] * width;
    for (std::size_t k = 0; k < width; ++k) sum[k] += row[k];
    touched_[ids[i] / 64] |= std::uint64_t{1} << ids[i] % 64;
  }
  std::size_t found = 0;
  for (std::size_t word = 0; word < touched_.size(); ++word) {
    for (std::uint64_t bits = std::exchange(touched_[word], 0); bits != 0; bits &= bits - 1) {
      const std::size_t id = word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
      for (std::size_t k = 0; k < width; ++k) sums_[found * width + k] = std::exchange(places_[id * width + k], 0.0F);
      unique_[found++] = id;
    }
  }
  ids = {unique_.data(), found};
}

// Sorts the first `count` of order_ by id, digit by digit. Equal ids stay in the order of their indices.
void RowSums::sort(std::size_t count) {
  constexpr unsigned kMostBits = 12;  // of a digit, whose counts then take a third of the first-level cache
  const unsigned bits = static_cast<unsigned>(std::bit_width(rows_ - 1)), digits = (bits + kMostBits - 1) / kMostBits;
  const unsigned of_digit = (bits + digits - 1) / digits;
  if (sorted_.size() < count) sorted_.resize(count);
  for (unsigned digit = 0; digit < digits; ++digit) {
    const unsigned shift = 32 + digit * of_digit;
    const std::uint64_t mask = (std::uint64_t{1} << of_digit) - 1;
    std::array<std::uint32_t, std::size_t{1} << kMostBits> begin{};
    for (std::size_t i = 0; i < count; ++i) ++begin[order_[i] >> shift & mask];
    std::exclusive_scan(begin.begin(), begin.end(), begin.begin(), std::uint32_t{0});
    for (std::size_t i = 0; i < count; ++i) sorted_[begin[order_[i] >> shift & mask]++] = order_[i];
    order_.swap(sorted_);
  }
}

// Many rows of a large table are sorted: rows that are changed in ascending order share lines of the page table, which
// the processor reads once (26,624 rows of 16 floats with their slots, of 10 million: 128 ns a row instead of 153).
void RowSums::combine_in_order(std::span<const std::uint64_t>& ids, std::span<const float>& gradients) {
  constexpr std::uint64_t kIndex = 0xffffffff;
  constexpr std::size_t kAhead = 8;
  const std::size_t width = width_, count = ids.size();
  if (order_.size() < count) order_.resize(count);
  for (std::size_t i = 0; i < count; ++i) order_[i] = std::uint64_t{ids[i]} << 32 | i;
  sort(count);
  std::size_t found = 0;
  std::uint64_t previous = rows_;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(gradients.data() + (order_[i + kAhead] & kIndex) * width);
    const std::uint64_t id = order_[i] >> 32;
    const bool is_new = id != previous;
    found += is_new;
    previous = id;
    unique_[found - 1] = id;
    const float* const row = gradients.data() + (order_[i] & kIndex) * width;
    float* const sum = sums_.data() + (found - 1) * width;
    add(sum, row, width, is_new);
  }
  ids = {unique_.data(), found};
}

// The sums of others are found through a hash table. No branch depends on whether an id is new, because it would
// often be mispredicted.
void RowSums::combine_by_hash(std::span<const std::uint64_t>& ids, std::span<const float>& gradients) {
  const update::KeyHash hash = hash_;
  const std::size_t width = width_, slots = std::bit_ceil(std::max<std::size_t>(16, 2 * ids.size()));
  if (seen_.size() < slots || ++call_ == 0) {
    seen_.assign(std::max(slots, seen_.size()), 0);
    call_ = 1;
  }
  const int shift = 64 - std::countr_zero(seen_.size());
  const std::size_t mask = seen_.size() - 1;
  std::size_t found = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::uint64_t id = ids[i];
    std::uint64_t slot = hash(id) >> shift, index = 0;
    bool is_new = true;
    for (;; slot = (slot + 1) & mask) {
      is_new = seen_[slot] >> 32 != call_;
      index = seen_[slot] & 0xffffffff;
      if (is_new || unique_[index] == id) break;
    }
    index = is_new ? found : index;
    seen_[slot] = std::uint64_t{call_} << 32 | index;
    unique_[index] = id;
    found += is_new;
    const float* const row = gradients.data() + i * width;
    float* const sum = sums_.data() + index * width;
    add(sum, row, width, is_new);
  }
  ids = {unique_.data(), found};
}

bool RowSums::combine(std::span<const std::uint64_t>& ids, std::span<const float>& gradients) {
  constexpr std::size_t kMaxSummedFloats = 16384;  // with the sums they stay in the second-level cache
  const std::size_t width = width_;
  if (sums_.size() < ids.size() * width) sums_.resize(ids.size() * width);
  if (unique_.size() < ids.size()) unique_.resize(ids.size());
  constexpr std::size_t kManyIds = 1024;
  const bool is_small = rows_ != kUnbounded && rows_ * width <= kMaxSummedFloats && rows_ <= 64 * ids.size();
  const bool is_sorted = !is_small && rows_ > 1 && rows_ >> 32 == 0 && ids.size() >= kManyIds && ids.size() >> 32 == 0;
  if (is_small)
    combine_in_places(ids, gradients);
  else if (is_sorted)
    combine_in_order(ids, gradients);
  else
    combine_by_hash(ids, gradients);
  gradients = {sums_.data(), ids.size() * width};
  return is_small || is_sorted;
}

}  // namespace ps_shm
