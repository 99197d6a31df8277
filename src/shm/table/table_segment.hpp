// The segments of a job's tables: making them, complete before they have names, and attaching to them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "ps_shm/table_spec.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/table/table_part.hpp"

namespace ps_shm::shm {

// What a table's segments say of it. The rule is resolved.
struct TableForm {
  const TableSpec& spec;
  UpdateRule rule;
  std::uint32_t slots;  // floats of state beside each element
  bool has_row_state;
};

// The parts of the table, made if there is no table of that name yet. Throws Error with kIncompatible if there is one of
// another form, kExhausted if the job has too many tables, kNoSpace, kDamaged. `fill` is called for each part that is made,
// before anybody else can see it.
std::vector<std::unique_ptr<TablePart>> open_table(JobSegments& job, const TableForm& form,
                                                   const std::function<std::uint32_t(std::uint32_t)>& lane_owner,
                                                   const std::function<void(TablePart&)>& fill = {});

// Whether the job has a table of that name, with all of its parts.
bool has_table(JobSegments& job, const std::string& name);

// The tables of a job that exist, for those who only look at it: part 0 of each in the order of their numbers, and the
// other parts behind it. Skips what is damaged or of another job.
std::vector<Segment> find_tables(const JobSegments& job);

// The record of a table's segment. Requires: is_table(segment, job).
inline const TableShm& table_record(const Segment& segment) noexcept {
  return *reinterpret_cast<const TableShm*>(segment.data() + kTableOffset);
}
// Whether the segment is a table's of the job, and its record is consistent. `checked` gets what describes the table,
// as it was when it was checked; what changes in use is left as it is.
bool is_table(const Segment& segment, const JobSegments& job, TableShm& checked) noexcept;
inline bool is_table(const Segment& segment, const JobSegments& job) noexcept {
  TableShm checked = {};
  return is_table(segment, job, checked);
}

// The parts of each table of a job.
inline std::uint32_t parts_of_tables(const JobConfig& config) noexcept {
  if (config.placement != Placement::kPartition) return 1;
  return config.partitions != 0 ? std::min(config.partitions, kMaxShards) : config.ps_tasks;
}

// Which part of a table a key belongs to. Rows lie in the order of the upper bits.
inline std::uint32_t part_of(const KeyHash& hash, std::uint64_t key, std::uint32_t parts) noexcept {
  return static_cast<std::uint32_t>((hash(key) & 0xffffffff) * parts >> 32);
}

}  // namespace ps_shm::shm
