// Reads the values of a job that may be dead or damaged: through checked copies of its records, with a bound on every
// loop. For the inspector, which has only the segments and the kernel's locks (invariant.I7). Workers check a job when
// they join it, and trust each other from then on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "shm/segment/directory.hpp"
#include "shm/segment/placement.hpp"
#include "shm/slots/inplace_rows.hpp"

namespace ps_shm {

inline bool is_inplace(const shm::VariableShm& variable) noexcept {
  return variable.layout == static_cast<std::uint32_t>(Layout::kInplace);
}
inline bool is_initialised(const shm::VariableShm& variable) noexcept {
  return variable.init.load_relaxed() == shm::kInitialised;
}

// Throws Error if a segment was truncated: its workers' entries, or a shard's tables, are then gone.
void require_whole(const shm::JobSegments& job);

// Returns the result of look(). Throws as require_whole() if a segment was truncated before look() or during it:
// results and errors of look() may then come from the zeros that are read there (truncation.hpp).
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

// The index in the whole variable of an element of a part.
inline std::uint64_t element_in_whole(const shm::VariableShm& part, std::uint64_t element) noexcept {
  if (!shm::is_hashed(part)) return part.part_begin * shm::gradients_per_float(part) + element;
  const std::uint64_t width = part.row_elements;
  return (element / width * part.parts + part.part) * width + element % width;
}

// The size of its optimizer slots; in place, the size of all that lies between its elements.
inline std::uint64_t slot_bytes(const shm::VariableShm& variable) noexcept {
  if (is_inplace(variable))
    return variable.elements / variable.row_elements * variable.row_bytes -
           variable.elements * shm::bytes_of_element(variable);
  return variable.elements * shm::gradients_per_float(variable) * variable.slots * sizeof(float);
}

// Copies its values (array 0) or slot array - 1 to `values`. Requires: checked; initialised; `values` of its size;
// array at most its number of slots. Throws Error if a chunk lies outside of the shard or stays torn.
void read_values(shm::JobSegments& job, const shm::VariableShm& variable, std::uint64_t array, std::span<float> values);

// The parts of one variable, in order.
using Group = std::vector<const shm::VariableShm*>;

// Variables in the order of declaration. A variable whose parts are not all declared yet is omitted.
std::vector<Group> grouped(const std::vector<shm::CheckedRecord>& records);

// Throws Error if the variable is unknown (lists the existing ones) or not initialised.
Group find_group(const shm::JobSegments& job, const std::vector<shm::CheckedRecord>& records, const std::string& name);

// Caches a job's variables by name, for reading one after the other. All records are checked at the first call, and
// again if there are new ones, or if a requested one has changed.
class KnownVariables {
 public:
  explicit KnownVariables(shm::JobSegments& job) : job_(job) {}

  // As find_group(). The result is valid until the next call.
  Group find(const std::string& name);

 private:
  bool is_as_checked(std::uint32_t position) const;

  shm::JobSegments& job_;
  std::vector<shm::CheckedRecord> records_;  // by position
  std::unordered_map<std::string, std::vector<std::uint32_t>> positions_;
};

// The same for a whole variable, with its rows in order.
std::vector<float> read_values(shm::JobSegments& job, const Group& group, std::uint64_t array);

// Values of complete chunks or blocks that are evenly distributed over the variable, about `most` of them, as bytes of
// its dtype. Requires: most > 0.
std::vector<std::byte> sample_values(shm::JobSegments& job, const Group& group, std::uint64_t most);

// Counts the buffers of one class of one shard, to which all `variables` belong. Requires: checked, initialised.
void add_buffers(shm::JobSegments& job, const std::vector<const shm::VariableShm*>& variables, BufferCount& count);

// The number of pushes of all its chunks or blocks together.
std::uint64_t sum_updates(shm::JobSegments& job, const shm::VariableShm& variable);

}  // namespace ps_shm
