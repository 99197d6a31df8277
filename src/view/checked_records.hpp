// Values of a job that may be dead or damaged: read through checked copies of its records, with a bound on every loop.
// For the inspector, which has nothing but the segments and the kernel's locks (invariant.I7). Workers check a job when
// they join it, and trust each other from then on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ps/errors.hpp"
#include "ps/job_view.hpp"
#include "shm/inplace_rows.hpp"
#include "shm/validation.hpp"

namespace ps {

inline bool is_inplace(const shm::VariableShm& variable) noexcept {
  return variable.layout == static_cast<std::uint32_t>(Layout::kInplace);
}
inline bool is_initialised(const shm::VariableShm& variable) noexcept {
  return variable.init.load_relaxed() == shm::kInitialised;
}

// Throws Error where a segment was cut off: its workers' entries, or a shard's tables, are gone then.
void require_whole(const shm::JobSegments& job);

// What look() returns. Throws as require_whole where a segment was cut off before it looked, or while it did: what it
// found, or says, may come from the zeros that are read there (truncation.hpp).
template <class Look>
auto look_at_whole(const shm::JobSegments& job, Look&& look) {
  require_whole(job);
  try {
    auto found = look();
    require_whole(job);
    return found;
  } catch (const Error&) {
    require_whole(job);
    throw;
  }
}

// Where an element of a part lies in the whole variable.
inline std::uint64_t element_in_whole(const shm::VariableShm& part, std::uint64_t element) noexcept {
  if (!shm::is_hashed(part)) return part.part_begin + element;
  const std::uint64_t width = part.row_elements;
  return (element / width * part.parts + part.part) * width + element % width;
}

// The bytes of its optimizer slots; in-place, of all that lies between its elements.
inline std::uint64_t slot_bytes(const shm::VariableShm& variable) noexcept {
  const std::uint64_t floats = is_inplace(variable)
                                   ? variable.elements / variable.row_elements * variable.row_floats - variable.elements
                                   : variable.elements * variable.slots;
  return floats * sizeof(float);
}

// Copies its values (array 0) or slot array - 1 to `values`. Requires: checked, initialised, of its size; array at most
// its slots. Throws Error where a chunk lies outside of the shard or stays torn.
void read_values(shm::JobSegments& job, const shm::VariableShm& variable, std::uint64_t array, std::span<float> values);

// A variable's parts, in order; each entry is of one variable.
using Group = std::vector<const shm::VariableShm*>;

// Variables in the order of declaration. One whose parts are not all declared yet is left out.
std::vector<Group> grouped(const std::vector<shm::CheckedRecord>& records);

// Throws Error: unknown (lists those there are), not initialised.
Group find_group(const shm::JobSegments& job, const std::vector<shm::CheckedRecord>& records, const std::string& name);

// A job's variables by name, for who reads one after the other: all records are checked at the first time, and again where
// there are more by now, or one of those that are asked for is not what it was.
class KnownVariables {
 public:
  explicit KnownVariables(shm::JobSegments& job) : job_(job) {}

  // As find_group. What it returns is good until the next call.
  Group find(const std::string& name);

 private:
  bool is_as_checked(std::uint32_t position) const;

  shm::JobSegments& job_;
  std::vector<shm::CheckedRecord> records_;  // by position
  std::unordered_map<std::string, std::vector<std::uint32_t>> positions_;
};

// The same of a whole variable, its rows in order.
std::vector<float> read_values(shm::JobSegments& job, const Group& group, std::uint64_t array);

// Values of whole chunks or blocks that lie evenly over the variable, about `most` of them, as bytes of its dtype.
// Requires: most > 0.
std::vector<std::byte> sample_values(shm::JobSegments& job, const Group& group, std::uint64_t most);

// Adds the buffers of one class of one shard, which all `variables` are of. Requires: checked, initialised.
void add_buffers(shm::JobSegments& job, const std::vector<const shm::VariableShm*>& variables, BufferCount& count);

// Pushes of all its chunks or blocks together.
std::uint64_t sum_updates(shm::JobSegments& job, const shm::VariableShm& variable);

}  // namespace ps
