/// @file
/// What happened to a table by key.
#pragma once

#include <cstdint>

#include "ps_shm/export.hpp"

namespace PS_SHM_API ps_shm {

/// Counted since the table was made, by all workers together.
struct TableStatistics {
  std::uint64_t rows = 0;      ///< that there are now, roughly: a killed worker may have left one uncounted
  std::uint64_t max_rows = 0;  ///< that there may be
  /// Roughly the rows that there may be with the memory that /dev/shm has now: max_rows, or fewer. If there are as
  /// many, new keys get the rows of others, or are refused.
  std::uint64_t rows_with_room = 0;
  std::uint64_t made = 0;        ///< rows
  std::uint64_t evicted = 0;     ///< rows, for whatever reason
  std::uint64_t expired = 0;     ///< evicted because they were too old
  std::uint64_t spared = 0;      ///< not evicted, because they were being pushed
  std::uint64_t rescued = 0;     ///< pushed while they were being evicted, and so kept
  std::uint64_t unadmitted = 0;  ///< pushes of keys that had no row yet
  std::uint64_t refused = 0;     ///< pushes of keys for which there was no room
  std::uint64_t hits = 0;        ///< pulled keys with a row
  std::uint64_t misses = 0;      ///< pulled keys without one
  std::uint64_t restarts = 0;    ///< searches that restarted, as other workers changed the list of rows where they were
  std::uint64_t bytes = 0;       ///< of memory that it takes
};

}  // namespace ps_shm
