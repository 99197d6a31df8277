// Reads the tables by key of a job, whose segments it does not trust.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/job_view.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/segment/table_layout.hpp"

namespace ps_shm {

// A part of a table, and what describes it as it was when it was checked.
struct TablePartView {
  shm::Segment segment;
  std::unique_ptr<shm::TableShm> checked;
};
using TableView = std::vector<TablePartView>;  // all parts, in order

// The tables that are complete, in the order of their numbers. Throws Error if a segment is damaged or cannot be read.
std::vector<TableView> open_tables(const shm::JobSegments& job);

// Throws Error if the table is unknown (lists the existing ones), and as open_tables().
TableView open_table_named(const shm::JobSegments& job, const std::string& name);

// Throws Error if the table was truncated meanwhile: what was found in it may then come from the zeros that are read.
void require_whole(const TableView& table);

TableInfo describe(const TableView& table);
TableCensus count_rows(const shm::JobSegments& job, const TableView& table, std::uint64_t most);
// `marks`, if given, gets TableRowShm::mark of each row.
std::vector<TableRow> copy_rows(const shm::JobSegments& job, const TableView& table, float lr,
                                std::uint64_t most, std::vector<std::uint32_t>* marks = nullptr);

// Rows with a NaN or an infinity among those with keys that were looked at.
struct OddRows {
  std::uint64_t share = 1;  // one in so many rows was looked at
  std::uint64_t sampled = 0, odd = 0;
  std::uint64_t key = 0, element = 0;  // of the first one
  float value = 0;
};
// Looks at about `most` values, of rows that are spread evenly; 0: at all. Further rows with each `turn`, until all have
// had theirs. Throws Error if the table was truncated.
OddRows find_odd_rows(const shm::JobSegments& job, const TableView& table, std::uint64_t most, std::uint64_t turn = 0);

// The index of the first value that is not finite; values.size() if all are finite.
std::size_t first_odd(std::span<const float> values) noexcept;

// The rows of one table, also of a job that has been removed since: a bridge to other boxes reads them once more at the
// job's end.
class TableReader {
 public:
  // Throws: Error as JobView() does, with kNotFound if there is no such table.
  TableReader(const std::string& job, const std::string& table);

  // The rows that have keys, in no particular order, and TableRowShm::mark of each. Throws Error (kDamaged).
  std::vector<TableRow> rows(std::vector<std::uint32_t>& marks) const;

  // As find_odd_rows().
  OddRows odd_rows(std::uint64_t most) const { return find_odd_rows(job_, table_, most); }

 private:
  static shm::JobSegments attached(const std::string& job);

  shm::JobSegments job_;
  TableView table_;
};

}  // namespace ps_shm
