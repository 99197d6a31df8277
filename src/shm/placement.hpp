// Where a variable's records lie: pure functions of the job's settings and of the records before (D2). Declaring places
// a record with them, attaching checks one.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "shm/job_segments.hpp"

namespace ps::shm {

inline constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;

// A part: rows of the first axis, or the whole of a variable that is not partitioned.
struct PartPlan {
  std::uint64_t begin, elements;
};

// The parts that a variable is cut into; one more than the directory can have where there are too many.
// Requires: every extent at least 1, their product at most kMaxElements.
std::vector<PartPlan> plan_parts(const JobSegments& job, std::string_view name, std::span<const std::uint64_t> shape);

// Chooses class and size of the record's chunks (blocks) by its elements, slots and layout; an accumulator's are those
// of `base`, the record that it sums gradients of.
void choose_pieces(VariableShm& record, const VariableShm* base, std::uint64_t chunk_bytes) noexcept;

// Chooses shard and offsets of a record whose pieces are chosen. `before`: the records at all positions before its own.
// Throws Error where the shard has not enough numbers for its buffers.
void choose_place(VariableShm& record, const JobSegments& job, std::span<const VariableShm* const> before);

inline bool is_accumulator(const VariableShm& record) noexcept { return record.base != 0; }

}  // namespace ps::shm
