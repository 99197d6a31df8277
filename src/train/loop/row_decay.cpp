#include "train/loop/row_decay.hpp"

namespace ps_shm::train {

RowDecay::RowDecay(const RowL2& l2, const SparseData& data, const SparsePart& part, std::size_t rows) : l2_(l2) {
  if (l2.first == 0.0F && l2.factors == 0.0F) return;
  std::uint64_t examples = 0;
  std::vector<std::uint32_t> occurrences(rows);
  for_each_example(data, part, [&](const SparseExample& example) {
    ++examples;
    for (const std::uint32_t id : example.ids) ++occurrences[id];
  });
  of_row_.reserve(rows);
  for (const std::uint32_t count : occurrences)
    of_row_.push_back(count == 0 ? 0.0F : static_cast<float>(double(examples) / double(count)));
}

}  // namespace ps_shm::train
