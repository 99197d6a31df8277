// Counts the rows of a table by their states and checks that they are where they belong (docs/protocols.md,
// table.*). Reads only; exact if nobody uses the table meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shm/segment/segment.hpp"
#include "shm/segment/table_layout.hpp"

namespace ps_shm::shm {

struct TableCensus {
  std::uint64_t linked = 0;                 // rows that have keys
  std::uint64_t free = 0;                   // anybody's
  std::uint64_t claimed = 0, unlinked = 0;  // being made; or left so by a dead worker, until the hand comes by
  std::uint64_t dead = 0;                   // evicted, and not free yet: likewise
  std::uint64_t buckets = 0;                // that are linked
  std::uint64_t longest = 0;                // rows behind one bucket, at most
  std::vector<std::string> faults;          // what must not be
};

// Requires: is_table().
TableCensus take_census(const Segment& segment);

}  // namespace ps_shm::shm
