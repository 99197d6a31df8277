// Conservation of a class's buffers: each is named by exactly one word, current buffer's header or
// free-buffer record (free_buffers.hpp).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "shm/segment/directory.hpp"
#include "shm/segment/placement.hpp"
#include "shm/slots/versioned_slot.hpp"
#include "support/job.hpp"

namespace ps_shm::test {

// How often words and records name each buffer of a class; `variables` are all variables of that class. Buffers that
// nothing names have count 0. Requires: no push is in progress.
inline std::map<std::uint64_t, int> count_names(const shm::JobSegments& job,
                                                const std::vector<const shm::VariableShm*>& variables) {
  std::map<std::uint64_t, int> names;
  const shm::VariableShm& first = *variables.front();
  for (const shm::VariableShm* variable : variables)
    for (std::uint64_t chunk = 0; chunk < variable->pieces; ++chunk)
      for (const std::uint64_t first :
           {variable->data_offset >> variable->buffer_class, variable->reserve.load_acquire()})
        if (first != 0) names.emplace(first + chunk, 0);
  for (std::uint64_t i = 0; i < job.lanes() * shm::kFreeBuffersPerClass; ++i)
    names.emplace((first.free_buffers_offset >> first.buffer_class) + i, 0);

  for (const shm::VariableShm* variable : variables) {
    const auto* const words =
        reinterpret_cast<const shm::PieceWordShm*>(job.shard_data(first.shard) + variable->words_offset);
    const shm::VersionedVariable chunks(job.shard(first.shard), *variable);
    for (std::uint64_t chunk = 0; chunk < variable->pieces; ++chunk) {
      ++names[shm::buffer_of(words[chunk].word.load_acquire())];
      if (variable->reserve.load_acquire() != 0) ++names[chunks.kept_by(chunk)];
    }
  }
  for (std::uint32_t lane = 0; lane < job.lanes(); ++lane)
    for (std::uint32_t which = 0; which < shm::kFreeBuffersPerClass; ++which) {
      const shm::FreeBufferShm& free_buffer =
          job.free_buffer_table(first.shard, lane).free_buffers[first.buffer_class - shm::kMinClass][which];
      ++names[shm::free_buffer_of(free_buffer.record.load_acquire(), first, lane, which)];
    }
  return names;
}

// Whether no buffer is lost and none is named twice.
inline bool is_conserved(const shm::JobSegments& job, const std::vector<const shm::VariableShm*>& variables) {
  const auto names = count_names(job, variables);
  return std::all_of(names.begin(), names.end(), [](const auto& one) { return one.second == 1; });
}

// For all variables of a job.
inline bool is_conserved(const std::string& job_name) {
  shm::AttachOutcome outcome;
  auto job = shm::JobSegments::try_attach(job_name, shm::Access::kReadOnly, outcome);
  if (!job) throw std::runtime_error("cannot attach to " + job_name);
  const shm::Directory directory(*job);
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<const shm::VariableShm*>> classes;
  for (std::uint32_t position = 0; position < directory.count(); ++position)
    if (directory.at(position).buffer_class != 0 && !shm::is_reserve(directory.at(position)))
      classes[{directory.at(position).shard, directory.at(position).buffer_class}].push_back(&directory.at(position));
  return std::all_of(classes.begin(), classes.end(), [&](const auto& one) { return is_conserved(*job, one.second); });
}

}  // namespace ps_shm::test
