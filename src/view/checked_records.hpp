// Records of a job that may be dead or damaged: copied, checked against the sizes of the segments, and read with a bound
// on every loop. For the inspector; workers trust each other.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ps/job_view.hpp"
#include "shm/job_segments.hpp"

namespace ps {

[[noreturn]] void fail_damaged(const std::string& segment, const std::string& what);

// A private copy, so that what was checked stays as it was.
using CheckedRecord = std::unique_ptr<shm::VariableShm>;

// Record `number` of a job with `shards` shards. Throws Error where anything in it leads outside of its shard.
CheckedRecord copy_record(shm::JobSegments& job, std::uint32_t number, std::uint32_t shards);

inline bool is_inplace(const shm::VariableShm& variable) noexcept {
  return variable.layout == static_cast<std::uint32_t>(Layout::kInplace);
}
inline bool is_initialised(const shm::VariableShm& variable) noexcept {
  return variable.init.load_relaxed() == shm::kInitialised;
}

// Copies its values (array 0) or slot array - 1 to `values`. Requires: checked, initialised, of its size; array at most
// its slots. Throws Error where a chunk lies outside of the shard or stays torn.
void read_values(shm::JobSegments& job, const shm::VariableShm& variable, std::uint64_t array, std::span<float> values);

// Adds the buffers of one class of one shard, which all `variables` are of. Requires: checked, initialised.
void add_buffers(shm::JobSegments& job, const std::vector<const shm::VariableShm*>& variables, BufferCount& count);

// Pushes of all its chunks or blocks together.
std::uint64_t sum_updates(shm::JobSegments& job, const shm::VariableShm& variable);

}  // namespace ps
