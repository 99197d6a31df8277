// Conservation of a class's buffers: each is named by exactly one word or spare record (spares.hpp).
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "support/test_job.hpp"

namespace ps::test {

// How often words and records name each buffer of the class that `variables` are all of. Buffers named never are there
// with 0. Requires: nobody pushes.
inline std::map<std::uint64_t, int> count_names(const TestJob& job,
                                                const std::vector<const shm::VariableShm*>& variables) {
  std::map<std::uint64_t, int> names;
  const shm::VariableShm& first = *variables.front();
  for (const shm::VariableShm* variable : variables)
    for (std::uint64_t chunk = 0; chunk < variable->pieces; ++chunk)
      names.emplace((variable->data_offset >> variable->buffer_class) + chunk, 0);
  for (std::uint32_t i = 0; i < job.segments.lanes() * shm::kSparesPerClass; ++i)
    names.emplace((first.spares_offset >> first.buffer_class) + i, 0);

  for (const shm::VariableShm* variable : variables)
    for (std::uint64_t chunk = 0; chunk < variable->pieces; ++chunk)
      ++names[shm::buffer_of(job.word(*variable, chunk).load_acquire())];
  for (std::uint32_t lane = 0; lane < job.segments.lanes(); ++lane)
    for (std::uint32_t which = 0; which < shm::kSparesPerClass; ++which)
      ++names[shm::spare_buffer(job.spare(first, lane, which).record.load_acquire(), first, lane, which)];
  return names;
}

// Whether no buffer is lost and none is named twice.
inline bool is_conserved(const TestJob& job, const std::vector<const shm::VariableShm*>& variables) {
  bool conserved = true;
  for (const auto& [buffer, times] : count_names(job, variables)) conserved = conserved && times == 1;
  return conserved;
}

}  // namespace ps::test
