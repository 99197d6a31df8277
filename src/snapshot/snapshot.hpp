// How a snapshot is taken: reserves for the chunks, the cut, and copies of what lies in place.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ps/snapshot.hpp"
#include "shm/cut.hpp"
#include "shm/directory.hpp"

namespace ps {

// How many arrays a variable has: its values, and what update::all_slots counts.
std::uint64_t arrays_of(const shm::VariableShm& record) noexcept;
// Whether array `array` has a float for each row, and not for each element.
bool is_of_rows(const shm::VariableShm& record, std::uint64_t array) noexcept;

// Copies values (array 0) or slot array - 1 of an in-place record while others may push: elements are whole.
// Requires: array < arrays_of(record); room for its elements, or rows.
void copy_inplace(const shm::JobSegments& job, const shm::VariableShm& record, std::uint64_t array,
                  std::span<float> out);
// The same of the values of one block. Requires: room for its elements.
void copy_inplace_block(const shm::JobSegments& job, const shm::VariableShm& record, std::uint64_t block, float* out);

// Who takes it: a descriptor of the job takes one snapshot at a time.
struct Snapshotter {
  shm::JobSegments& job;
  std::optional<std::uint32_t> rank{};   // of a worker
  std::function<void()> each_slice{};    // called in each wait for the snapshot before; may throw
  bool is_guest = false;                 // neither a worker nor the ps: it may be the last one out
  std::shared_ptr<bool> is_taking = {};  // of all that share this descriptor
};

struct PS_HIDDEN Snapshot::Impl {
  // Waits for the snapshot before, up to options.wait_seconds, and for pushes under way, up to its patience.
  // Throws Error: another one is there still, /dev/shm has no room for reserves, the job is damaged.
  Impl(const Snapshotter& taker, const SnapshotOptions& options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  struct Part {
    const shm::VariableShm* record;
    std::vector<std::vector<float>> copied{};  // in-place: each array, where there was time for it in the pause
    bool is_fuzzy = false;
  };

  const std::vector<Part>& parts_of(const std::string& name) const;
  // That the array lies in.
  std::uint64_t floats_of(const std::string& name, std::uint64_t array) const;
  std::uint64_t bytes_of(const std::string& name, std::uint64_t array) const;
  // Floats [begin, begin + out.size()) of it. Requires: it has them.
  void copy(const std::string& name, std::uint64_t begin, std::span<float> out, std::uint64_t array) const;

  Snapshotter taker;
  shm::MadeCut cut;
  std::vector<std::uint32_t> split;
  std::map<std::string, std::vector<Part>> variables;
  // The array in place that was read last in pieces.
  mutable std::vector<float> ordered;
  mutable std::pair<std::string, std::uint64_t> ordered_of;

 private:
  void lock(double wait_seconds);
  void unlock() noexcept;
  void list();
  std::vector<Part*> small_ones(std::uint64_t bytes);
  void copy_all(const std::vector<Part>& parts, std::span<float> out, std::uint64_t array) const;
};

}  // namespace ps
