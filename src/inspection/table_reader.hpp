// The rows of a table by key of a job, also of a job that has been removed since: a bridge to other boxes reads them
// once more at the job's end.
#pragma once

#include <string>

#include "inspection/tables.hpp"

namespace ps_shm {

class TableReader {
 public:
  // Throws: Error as JobView() does, with kNotFound if there is no such table.
  TableReader(const std::string& job, const std::string& table);

  // The rows that have keys, in no particular order, and TableRowShm::mark of each. Throws Error (kDamaged).
  std::vector<KeyedRow> rows(std::vector<std::uint32_t>& marks) const;

  // As find_odd_rows().
  OddRows odd_rows(std::uint64_t most) const { return find_odd_rows(job_, table_, most); }

 private:
  static shm::JobSegments attached(const std::string& job);

  shm::JobSegments job_;
  TableView table_;
};

}  // namespace ps_shm
