// A job of tests without a server: its segments, as a ps makes them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "shm/segment/directory.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/slots/inplace_slot.hpp"
#include "shm/slots/versioned_slot.hpp"
#include "support/job.hpp"

namespace ps_shm::test {

// Changes one of the job's settings where they are stored.
inline void alter_setting(const shm::JobSegments& job, const std::string& name, const std::string& value) {
  shm::SettingsShm& stored = job.settings();
  std::string text(stored.text, stored.bytes);
  const std::size_t begin = ("\n" + text).find("\n" + name + "=");
  if (begin == std::string::npos) throw std::runtime_error("no setting " + name);
  text.replace(begin, text.find('\n', begin) - begin, name + "=" + value);
  text.copy(stored.text, sizeof stored.text);
  stored.bytes = static_cast<std::uint32_t>(text.size());
}

// A job that this object has created; its descriptor holds the ps byte.
struct TestJob {
  JobName name;
  shm::JobSegments segments;

  explicit TestJob(const JobConfig& config = {})
      : segments(shm::JobSegments::create(config_of(with_name(config, name.text())))) {}

  shm::JobSegments attach(shm::Access access = shm::Access::kReadWrite) const {
    return test::attach(name.text(), access);
  }

  // A variable with one axis, every element of which is `first`.
  shm::VariableShm& declare(const std::string& variable, std::uint64_t elements, float first = 0,
                            Layout layout = Layout::kVersioned, std::uint64_t slots = 0) {
    VariableSpec spec;
    spec.name = variable;
    spec.shape = {elements};
    spec.rule = UpdateRule::kAdd;
    spec.layout = layout;
    shm::Directory directory(segments);
    shm::VariableShm& record = directory.at(directory.declare(spec, slots, shm::kTaskByte).front());
    const std::vector<float> values(record.piece_elements, first);
    for (std::uint64_t piece = 0; piece < record.pieces; ++piece)
      if (layout != Layout::kInplace) {
        shm::VersionedVariable slot(segments.shard(0), record);
        slot.initialise_chunk(piece, std::span(values).first(slot.chunk_size(piece)));
      } else {
        shm::InplaceVariable slot(segments.shard_data(0), record);
        std::copy_n(values.begin(), slot.block_size(piece), slot.elements() + slot.block_begin(piece));
      }
    record.init.store_release(shm::kInitialised);
    return record;
  }

  shm::VersionedVariable versioned(const shm::VariableShm& record) const { return {segments.shard(0), record}; }
  shm::AtomicShm<std::uint64_t>& word(const shm::VariableShm& record, std::uint64_t chunk) const {
    return reinterpret_cast<shm::PieceWordShm*>(segments.shard_data(0) + record.words_offset)[chunk].word;
  }
  shm::BufferHeaderShm& buffer(const shm::VariableShm& record, std::uint64_t number) const {
    return *reinterpret_cast<shm::BufferHeaderShm*>(segments.shard_data(0) + (number << record.buffer_class));
  }
  shm::FreeBufferShm& free_buffer(const shm::VariableShm& record, std::uint32_t lane, std::uint32_t which) const {
    return segments.free_buffer_table(0, lane).free_buffers[record.buffer_class - shm::kMinClass][which];
  }
};

}  // namespace ps_shm::test
