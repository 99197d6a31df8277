#include "train/loop/row_decay.hpp"

#include <algorithm>
#include <bit>

#include "train/data/random.hpp"
#include "train/models/sparse/sparse_model.hpp"

namespace ps_shm::train {
namespace {

std::vector<float> inverse_shares(std::uint64_t examples, std::span<const std::uint32_t> occurrences) {
  std::vector<float> all;
  all.reserve(occurrences.size());
  for (const std::uint32_t count : occurrences)
    all.push_back(count == 0 ? 0.0F : static_cast<float>(double(examples) / double(count)));
  return all;
}

// Cells is a power of two.
std::pair<std::size_t, std::size_t> cells_of(std::uint64_t key, std::size_t cells) noexcept {
  const std::uint64_t mixed = mix(key);
  return {mixed & (cells - 1), (mixed >> 32) & (cells - 1)};
}

}  // namespace

RowDecay::RowDecay(const RowL2& l2, const SparseData& data, const SparsePart& part, std::size_t rows) : l2_(l2) {
  if (l2.first == 0.0F && l2.factors == 0.0F) return;
  if (data.info().has_keys != 0) {
    count_keys(data, part);
    return;
  }
  std::uint64_t examples = 0;
  std::vector<std::uint32_t> occurrences(rows);
  for_each_example(data, part, [&](const SparseExample& example) {
    ++examples;
    for (const std::uint32_t id : example.ids) ++occurrences[id];
  });
  of_row_ = inverse_shares(examples, occurrences);
}

void RowDecay::count_keys(const SparseData& data, const SparsePart& part) {
  constexpr std::uint64_t kFewest = 1 << 10, kMost = 1 << 22;
  std::uint64_t examples = 0;
  std::vector<std::uint32_t> occurrences(std::bit_ceil(std::clamp(4 * data.info().nonzeros, kFewest, kMost)));
  for_each_example(data, part, [&](const SparseExample& example) {
    ++examples;
    for (const std::uint64_t key : example.keys) {
      const auto [first, second] = cells_of(key, occurrences.size());
      ++occurrences[first];
      if (second != first) ++occurrences[second];
    }
  });
  of_row_ = inverse_shares(examples, occurrences);
}

float RowDecay::scale_of(std::uint64_t key) const noexcept {
  if (key == kBiasKey) return 0.0F;
  const auto [first, second] = cells_of(key, of_row_.size());
  return std::max(of_row_[first], of_row_[second]);
}

}  // namespace ps_shm::train
