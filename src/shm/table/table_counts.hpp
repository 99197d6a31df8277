// What the counters of a table's lanes say, as a TableStatistics.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ps_shm/table_statistics.hpp"
#include "shm/segment/table_layout.hpp"
#include "shm/table/table_part.hpp"

namespace ps_shm::shm {

// Adds one part of a table, whose record was checked. free_bytes: of /dev/shm, less those that the part may still take.
// counted(which) returns the sum of that counter over its lanes. Wait-free.
template <class Counted>
void add_part(TableStatistics& to, const TableShm& checked, const Segment& segment, std::uint64_t& free_bytes,
              const Counted& counted) {
  const auto& record = *reinterpret_cast<const TableShm*>(segment.data() + kTableOffset);
  const std::uint64_t backed = std::min(record.rows_backed.load_acquire(), checked.max_rows);  // (table.A1)
  const std::uint64_t step = rows_of_step(checked.row_bytes), missing = checked.max_rows - backed;
  const std::uint64_t fitting = free_bytes / checked.row_bytes;
  const std::uint64_t more = fitting >= missing ? missing : fitting / step * step;
  free_bytes -= more * checked.row_bytes;
  to.rows_with_room += backed + more;
  to.made += counted(TableCounter::kMade);
  to.evicted += counted(TableCounter::kEvicted);
  to.expired += counted(TableCounter::kExpired);
  to.spared += counted(TableCounter::kSpared);
  to.rescued += counted(TableCounter::kRescued);
  to.unadmitted += counted(TableCounter::kUnadmitted);
  to.refused += counted(TableCounter::kRefused);
  to.hits += counted(TableCounter::kHits);
  to.misses += counted(TableCounter::kMisses);
  to.restarts += counted(TableCounter::kRestarts);
  to.max_rows += checked.max_rows;
  to.bytes += segment.allocated_bytes();
  to.rows = to.made - std::min(to.made, to.evicted);
}

}  // namespace ps_shm::shm
