#include "worker/row_sums.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace ps_shm {

template <class Id>
std::vector<Id>& RowSums::unique_room(std::size_t count) {
  auto& room = std::get<std::vector<Id>>(unique_);
  if (room.size() < count) room.resize(count);
  return room;
}

// In a small table each row has a place for its sum, and the sums come out in ascending order.
template <class Id>
void RowSums::combine_in_places(std::span<const Id>& ids, std::span<const float>& gradients) {
  const std::size_t width = width_, rows = rows_;
  places_.resize(rows * width);
  touched_.resize((rows + 63) / 64);
  std::vector<Id>& unique = unique_room<Id>(ids.size());  // nothing may throw while the places hold sums
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
      unique[found++] = static_cast<Id>(id);
    }
  }
  ids = {unique.data(), found};
}

// In a large table the sums are found through a hash table. No branch depends on whether an id is new, because it would
// often be mispredicted.
template <class Id>
void RowSums::combine_by_hash(std::span<const Id>& ids, std::span<const float>& gradients) {
  const update::KeyHash hash = hash_;
  const std::size_t width = width_, slots = std::bit_ceil(std::max<std::size_t>(16, 2 * ids.size()));
  if (seen_.size() < slots || ++call_ == 0) {
    seen_.assign(std::max(slots, seen_.size()), 0);
    call_ = 1;
  }
  const int shift = 64 - std::countr_zero(seen_.size());
  const std::size_t mask = seen_.size() - 1;
  std::vector<Id>& unique = unique_room<Id>(ids.size());
  std::size_t found = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Id id = ids[i];
    std::uint64_t slot = hash(id) >> shift, index = 0;
    bool is_new = true;
    for (;; slot = (slot + 1) & mask) {
      is_new = seen_[slot] >> 32 != call_;
      index = seen_[slot] & 0xffffffff;
      if (is_new || unique[index] == id) break;
    }
    index = is_new ? found : index;
    seen_[slot] = std::uint64_t{call_} << 32 | index;
    unique[index] = id;
    found += is_new;
    const float* const row = gradients.data() + i * width;
    float* const sum = sums_.data() + index * width;
    for (std::size_t k = 0; k < width; ++k) sum[k] = (is_new ? 0.0F : sum[k]) + row[k];
  }
  ids = {unique.data(), found};
}

template <class Id>
bool RowSums::combine(std::span<const Id>& ids, std::span<const float>& gradients) {
  constexpr std::size_t kMaxSummedFloats = 16384;  // with the sums they stay in the second-level cache
  const std::size_t width = width_;
  if (sums_.size() < ids.size() * width) sums_.resize(ids.size() * width);
  const bool is_small = rows_ != kUnbounded && rows_ * width <= kMaxSummedFloats && rows_ <= 64 * ids.size();
  if (is_small)
    combine_in_places(ids, gradients);
  else
    combine_by_hash(ids, gradients);
  gradients = {sums_.data(), ids.size() * width};
  return is_small;
}

template bool RowSums::combine(std::span<const std::uint32_t>&, std::span<const float>&);
template bool RowSums::combine(std::span<const std::uint64_t>&, std::span<const float>&);

}  // namespace ps_shm
