#include "shm/table/census.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "shm/table/table_segment.hpp"

namespace ps_shm::shm {

TableCensus take_census(const Segment& segment) {
  constexpr std::size_t kMostFaults = 10;
  const TableShm& table = table_record(segment);
  const auto* const buckets = reinterpret_cast<const AtomicShm<std::uint64_t>*>(segment.data() + table.buckets_offset);
  const auto row = [&](std::uint64_t number) -> const TableRowShm& {
    return *reinterpret_cast<const TableRowShm*>(segment.data() + table.rows_offset + number * table.row_bytes);
  };
  TableCensus census;
  const auto complain = [&](std::string text) {
    if (census.faults.size() < kMostFaults) census.faults.push_back(std::move(text));
  };
  const std::uint64_t next = table.rows_next.load_acquire(), backed = table.rows_backed.load_acquire();  // (table.A1)
  const std::uint64_t end = std::min({next, backed, table.max_rows});
  std::vector<bool> is_linked(end);
  std::uint64_t chain = 0, order_before = 0, key_before = 0;
  bool has_key_before = false;
  std::uint64_t reference = reference_of(buckets[0].load_acquire());  // (table.F1)
  for (std::uint64_t steps = 0; reference != kEndOfList; ++steps) {
    const auto index = static_cast<std::uint32_t>(reference);
    if (steps > end + (std::uint64_t{1} << table.max_bits)) {
      complain("the list has no end");
      break;
    }
    if ((reference & kBucketKind) != 0) {
      if (index >> table.bits.hint() != 0) {
        complain(fmt::format("the list leads to bucket {}, which there is not", index));
        break;
      }
      const std::uint64_t order = order_of_bucket(index);
      if (order <= order_before) complain(fmt::format("bucket {} is not in order", index));
      order_before = order, has_key_before = false;
      ++census.buckets, chain = 0;
      reference = reference_of(buckets[index].load_acquire());  // (table.F1)
      continue;
    }
    if (index >= end || is_linked[index]) {
      complain(
          fmt::format("the list leads to row {}, {}", index, index >= end ? "which there is not" : "a second time"));
      break;
    }
    is_linked[index] = true;
    const std::uint64_t word = row(index).word.load_acquire(), key = row(index).key.load_relaxed();  // (table.F1)
    const std::uint64_t order = order_of_row(key);
    if (order < order_before || (order == order_before && has_key_before && key <= key_before))
      complain(fmt::format("row {} of key {} is not in order", index, key));
    order_before = order, key_before = key, has_key_before = true;
    if (state_of(word) == RowState::kFree) complain(fmt::format("row {} is linked and free", index));
    (state_of(word) == RowState::kDead ? census.dead : census.linked) += 1;
    census.longest = std::max(census.longest, ++chain);
    reference = reference_of(word);
  }
  for (std::uint64_t number = 0; number < end; ++number) {
    if (is_linked[number]) continue;
    const std::uint64_t word = row(number).word.load_acquire();  // (table.E1)
    switch (state_of(word)) {
      case RowState::kFree:
        ++(reference_of(word) == 0 ? census.free : census.claimed);
        break;
      case RowState::kNew:
        ++census.unlinked;
        break;
      case RowState::kDead:
        ++census.dead;
        break;
      default:
        complain(fmt::format("row {} of key {} is live and in no chain", number, row(number).key.load_relaxed()));
    }
  }
  return census;
}

}  // namespace ps_shm::shm
