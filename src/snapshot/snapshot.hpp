// How a snapshot is taken: reserves for the chunks, the snapshot point, and copies of in-place variables.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ps_shm/snapshot.hpp"
#include "shm/segment/directory.hpp"
#include "shm/steps/snapshot_point.hpp"

namespace ps_shm {

// The number of a variable's arrays: its values, and those that update::all_slots counts.
std::uint64_t arrays_of(const shm::VariableShm& record) noexcept;
// Whether array `array` has a float for each row instead of each element.
bool is_of_rows(const shm::VariableShm& record, std::uint64_t array) noexcept;

// The names of the arrays from 1 on, the optimizer slots.
std::vector<std::string> slots_of(const shm::VariableShm& record);
// The array of that slot; empty: 0, the values. Throws Error (kNotFound), which lists those that there are.
std::uint64_t array_of(const shm::VariableShm& record, const std::string& slot);

// Copies values (array 0) or optimizer slot array - 1 of an in-place record while other workers may push. No element
// is torn. Requires: array < arrays_of(record); `out` has room for its elements, or rows.
void copy_inplace(const shm::JobSegments& job, const shm::VariableShm& record, std::uint64_t array,
                  std::span<float> out);
// The same for the values of one block. Requires: room for its elements.
void copy_inplace_block(const shm::JobSegments& job, const shm::VariableShm& record, std::uint64_t block, float* out);

// The process that takes a snapshot. Through one descriptor of a job, one snapshot is taken at a time.
struct Snapshotter {
  shm::JobSegments& job;
  std::optional<std::uint32_t> rank{};   // if it is a worker
  std::function<void()> each_slice{};    // called while waiting for the previous snapshot; may throw
  bool is_guest = false;                 // neither a worker nor the ps: it may be the last process to leave
  std::shared_ptr<bool> is_taking = {};  // shared by all users of this descriptor
};

struct PS_SHM_HIDDEN Snapshot::Impl {
  // Waits for the previous snapshot, up to options.wait, and for pushes under way, up to its patience. Throws
  // Error if the previous snapshot is not given back, /dev/shm has no space for reserves, or the job is damaged.
  Impl(const Snapshotter& taker, const SnapshotOptions& options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  struct Part {
    const shm::VariableShm* record;
    std::vector<std::vector<float>> copied{};  // in-place: each array, if it was copied during the pause
    bool is_point_in_time = true;
  };

  const std::vector<Part>& parts_of(const std::string& name) const;
  std::uint64_t array_of(const std::string& name, const std::string& slot) const;
  // The number of floats in the array.
  std::uint64_t floats_of(const std::string& name, std::uint64_t array) const;
  std::uint64_t bytes_of(const std::string& name, std::uint64_t array) const;
  // Copies floats [begin, begin + out.size()) of the array. Requires: the array has them.
  void copy(const std::string& name, std::uint64_t begin, std::span<float> out, std::uint64_t array) const;
  // The same as bytes of its dtype, from byte `begin` on.
  void copy_bytes(const std::string& name, std::uint64_t begin, std::span<std::byte> out, std::uint64_t array) const;

  Snapshotter taker;
  shm::SnapshotPoint point;
  std::vector<std::uint32_t> partial_ranks;
  std::map<std::string, std::vector<Part>> variables;
  // The in-place array that was last read piece by piece.
  mutable std::vector<float> ordered;
  mutable std::pair<std::string, std::uint64_t> ordered_of;

 private:
  void lock(WaitLimit wait);
  void unlock() noexcept;
  void list();
  std::vector<Part*> small_ones(std::uint64_t bytes);
  shm::SnapshotPoint before_step(shm::SnapshotPointMaker& maker, const SnapshotOptions& options) const;
  void copy_all(const std::vector<Part>& parts, std::span<float> out, std::uint64_t array) const;
};

}  // namespace ps_shm
