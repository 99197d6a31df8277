// Cheap, frequent reads of parts of a job, for monitoring: the current state of ranks, single chunks and blocks, the
// processes. Writes nothing. As with JobView, the job may be dead or damaged.
//
// All functions throw Error if a segment is damaged or truncated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "inspection/checked_records.hpp"
#include "shm/segment/layout.hpp"

namespace ps_shm {

// The state of a rank at one moment.
struct RankLook {
  std::uint32_t rank = 0;
  WorkerState state = WorkerState::kNever;
  std::uint32_t pid = 0;
  std::uint64_t holders = 0;
  std::uint64_t steps = 0, pulls = 0, pushes = 0;  // read together, within one step
  shm::WaitingFor waiting = shm::WaitingFor::kNothing;
  std::uint64_t waiting_on = 0;
  bool is_pushing = false;
  bool has_arrived = false;  // sync: its gradient is published, and the next step is not open yet
};

// The constant properties of a variable, and whether it has values.
struct VariableFacts {
  std::string name;
  DType dtype = DType::kFloat32;
  DType array_dtype = DType::kFloat32;  // of what Probe::read() gives
  Layout layout = Layout::kVersioned;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0, elements = 0;
  std::uint64_t pieces = 0;                // chunks or blocks of all parts
  std::uint64_t rows = 0, row_floats = 0;  // 0: it has no rows that can be pushed individually
  std::vector<std::uint32_t> shards;       // of its parts
  std::vector<int> nodes;                  // -1: any node
  bool is_initialised = false;
};

class Probe {
 public:
  // Throws Error as JobView does.
  explicit Probe(const std::string& job);

  // Whether the job's name in /dev/shm now leads to another job, or to none.
  bool is_gone() const { return job_.is_orphaned(); }
  // Throws Error if a segment was truncated.
  void require_whole() const;

  // The ranks that have had an owner.
  std::vector<RankLook> ranks() const;

  // The process that holds the rank's lock, if /proc shows it here. Searches all processes.
  std::optional<std::uint32_t> holder(std::uint32_t rank) const;
  bool is_alive(std::uint32_t rank) const { return job_.is_alive(rank); }

  // In the order of declaration. The result is valid until the next call.
  const std::vector<VariableFacts>& variables();

  // The number of updates of one piece (chunk or block) of an initialised variable. `variable` is an index into
  // variables(); pieces are counted over all parts.
  std::uint64_t updates(std::size_t variable, std::uint64_t piece) const;
  // About how often a push of the chunk had to be repeated; 0 for an in-place variable. Wraps after 2^32.
  std::uint32_t retries(std::size_t variable, std::uint64_t piece) const;
  // Reads its floats as they are stored; of an in-place variable, its values. Returns false if it stays torn.
  bool read(std::size_t variable, std::uint64_t piece, std::vector<float>& floats);
  // For variables with rows: the numbers of the piece's rows in the whole variable, in the order of read(). Empty if a
  // row is longer than a block.
  std::vector<std::uint64_t> rows(std::size_t variable, std::uint64_t piece) const;

 private:
  struct Place {
    const shm::VariableShm& record;
    std::uint64_t piece;  // index in this part
  };
  Place find(std::size_t variable, std::uint64_t piece) const;

  shm::JobSegments job_;
  std::vector<shm::CheckedRecord> records_;
  std::vector<Group> groups_;
  std::vector<std::uint32_t> positions_;  // position in the directory of each group's first record
  std::vector<VariableFacts> facts_;
};

}  // namespace ps_shm
