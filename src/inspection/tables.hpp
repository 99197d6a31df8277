// Reads the tables by key of a job, whose segments it does not trust.
#pragma once

#include <memory>
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
TableRows count_rows(const shm::JobSegments& job, const TableView& table, std::uint64_t most);
// `marks`, if given, gets TableRowShm::mark of each row.
std::vector<KeyedRow> copy_rows(const shm::JobSegments& job, const TableView& table, float learning_rate,
                                std::uint64_t most, std::vector<std::uint32_t>* marks = nullptr);

}  // namespace ps_shm
