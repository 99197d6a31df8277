// Values of a job that may be dead or damaged: read through checked copies of its records, with a bound on every loop.
// For the inspector; workers check a job when they join it, and trust each other from then on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ps/job_view.hpp"
#include "shm/validation.hpp"

namespace ps {

inline bool is_inplace(const shm::VariableShm& variable) noexcept {
  return variable.layout == static_cast<std::uint32_t>(Layout::kInplace);
}
inline bool is_initialised(const shm::VariableShm& variable) noexcept {
  return variable.init.load_relaxed() == shm::kInitialised;
}

// Of optimizer slots, and in-place of all that lies between its elements.
inline std::uint64_t slot_bytes(const shm::VariableShm& variable) noexcept {
  const std::uint64_t floats = is_inplace(variable)
                                   ? variable.elements / variable.row_elements * variable.row_floats - variable.elements
                                   : variable.elements * variable.slots;
  return floats * sizeof(float);
}

// Copies its values (array 0) or slot array - 1 to `values`. Requires: checked, initialised, of its size; array at most
// its slots. Throws Error where a chunk lies outside of the shard or stays torn.
void read_values(shm::JobSegments& job, const shm::VariableShm& variable, std::uint64_t array, std::span<float> values);

// Adds the buffers of one class of one shard, which all `variables` are of. Requires: checked, initialised.
void add_buffers(shm::JobSegments& job, const std::vector<const shm::VariableShm*>& variables, BufferCount& count);

// Pushes of all its chunks or blocks together.
std::uint64_t sum_updates(shm::JobSegments& job, const shm::VariableShm& variable);

}  // namespace ps
