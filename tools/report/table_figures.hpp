// The figures of a table by key, by their names in JSON and in metrics, in the order in which they are shown.
#pragma once

#include <cstdint>

#include "ps_shm/table_statistics.hpp"

namespace ps_shm::report {

struct TableFigure {
  const char* name;  // in JSON
  std::uint64_t TableStatistics::*member;
  const char* metric;  // for Prometheus; a counter if it ends in _total
  const char* help;    // of the metric
};

inline constexpr TableFigure kTableFigures[] = {
    {"rows", &TableStatistics::rows, "ps_shm_table_rows", "Rows of the table."},
    {"max_rows", &TableStatistics::max_rows, "ps_shm_table_max_rows", "The most rows that the table may have."},
    {"rows_with_room", &TableStatistics::rows_with_room, "ps_shm_table_rows_with_room",
     "The rows that the table may have with the memory that /dev/shm has now."},
    {"bytes", &TableStatistics::bytes, "ps_shm_table_bytes", "Memory of the table."},
    {"made", &TableStatistics::made, "ps_shm_table_rows_made_total", "Rows made."},
    {"evicted", &TableStatistics::evicted, "ps_shm_table_rows_evicted_total", "Rows evicted, for whatever reason."},
    {"expired", &TableStatistics::expired, "ps_shm_table_rows_expired_total", "Rows evicted because of their age."},
    {"spared", &TableStatistics::spared, "ps_shm_table_rows_spared_total",
     "Rows not evicted because they were being pushed."},
    {"rescued", &TableStatistics::rescued, "ps_shm_table_rows_rescued_total",
     "Rows kept by a push while they were being evicted."},
    {"unadmitted", &TableStatistics::unadmitted, "ps_shm_table_unadmitted_total",
     "Pushes of keys that had no row yet."},
    {"refused", &TableStatistics::refused, "ps_shm_table_refused_total", "Pushes of keys for which there was no room."},
    {"hits", &TableStatistics::hits, "ps_shm_table_hits_total", "Pulled keys with a row."},
    {"misses", &TableStatistics::misses, "ps_shm_table_misses_total", "Pulled keys without a row."},
    {"restarts", &TableStatistics::restarts, "ps_shm_table_restarts_total",
     "Searches that began anew because other workers changed the list."},
};

}  // namespace ps_shm::report
