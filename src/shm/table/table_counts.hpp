// What the counters of a table's lanes say, as a TableStatistics.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ps_shm/table_statistics.hpp"
#include "shm/segment/table_layout.hpp"

namespace ps_shm::shm {

// Adds one part of a table. counted(which) returns the sum of that counter over its lanes. Wait-free.
template <class Counted>
void add_part(TableStatistics& to, std::uint64_t max_rows, std::uint64_t bytes, const Counted& counted) {
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
  to.max_rows += max_rows;
  to.bytes += bytes;
  to.rows = to.made - std::min(to.made, to.evicted);
}

}  // namespace ps_shm::shm
