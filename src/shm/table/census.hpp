// Counts the rows of a table by their states and checks that they are where they belong (docs/protocols.md, table.*),
// also where the table is damaged or in use. Reads only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shm/segment/segment.hpp"
#include "shm/segment/table_layout.hpp"

namespace ps_shm::shm {

struct PartCensus {
  std::uint64_t sampled = 0;                // rows, of all that may be in use: all of them, if nothing is left out
  std::uint64_t linked = 0;                 // rows that have keys
  std::uint64_t sealed = 0;                 // of these: somebody means to evict them
  std::uint64_t free = 0;                   // anybody's
  std::uint64_t claimed = 0, unlinked = 0;  // being made; or left so by a dead worker, until the clock sweep comes by
  std::uint64_t dead = 0;                   // evicted, and not free yet: likewise
  std::vector<std::uint64_t> chains;        // [n]: buckets with n rows behind them, up to the next bucket
  std::uint64_t passed = 0;                 // buckets whose rows have changed at each of many reads
  std::vector<std::string> faults;          // what must not be

  struct Used {
    std::uint64_t key;
    std::uint32_t frequency;
  };
  std::vector<Used> hottest;  // rows with keys that are used most often, where the table counts that
};

struct CensusRequest {
  std::uint64_t share = 1;         // reads one of so many buckets and rows; only 1 finds rows that are in no chain
  bool is_in_use = false;          // then rows that come and go meanwhile are no fault
  std::size_t most_hot_rows = 10;  // in `hottest`
};

// Requires: is_table(), which has given `checked`.
PartCensus take_census(const Segment& segment, const TableShm& checked, const CensusRequest& request = {});

}  // namespace ps_shm::shm
