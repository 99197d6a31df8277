// Looks at parts of a job, often and cheaply, for who watches it: what ranks do at this moment, single chunks and blocks,
// lists of processes. Writes nothing. As with JobView, the job may be dead or damaged.
//
// All throw Error where a segment is damaged or was cut off.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shm/layout.hpp"
#include "view/checked_records.hpp"

namespace ps {

// What a rank's words say at one moment.
struct RankLook {
  std::uint32_t rank = 0;
  WorkerState state = WorkerState::kNever;
  std::uint32_t pid = 0;
  std::uint64_t holders = 0;
  std::uint64_t steps = 0, pulls = 0, pushes = 0;  // of one moment of the rank's
  shm::WaitingFor waiting = shm::WaitingFor::kNothing;
  std::uint64_t waiting_on = 0;
  bool is_pushing = false;
  bool has_arrived = false;  // sync: its gradient is there, and the step is not open yet
};

// What never changes of a variable, and whether it has values.
struct VariableFacts {
  std::string name;
  DType dtype = DType::kFloat32;
  Layout layout = Layout::kVersioned;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0, elements = 0;
  std::uint64_t pieces = 0;                // chunks or blocks of all parts
  std::uint64_t rows = 0, row_floats = 0;  // 0: it has no rows that can be pushed one by one
  std::vector<std::uint32_t> shards;       // of its parts
  std::vector<int> nodes;                  // -1: on any
  bool is_initialised = false;
};

class Probe {
 public:
  // Throws Error as JobView does.
  explicit Probe(const std::string& job);

  // Whether /dev/shm's name of the job leads elsewhere by now, or nowhere.
  bool is_gone() const { return job_.is_orphaned(); }
  // Throws Error where a segment was cut off.
  void require_whole() const;

  // Of the ranks that somebody has had.
  std::vector<RankLook> ranks() const;

  // The process that holds the rank's lock, of those that /proc shows here. Looks at every process.
  std::optional<std::uint32_t> holder(std::uint32_t rank) const;
  bool is_alive(std::uint32_t rank) const { return job_.is_alive(rank); }

  // In the order of declaration. What it returns is good until the next call.
  const std::vector<VariableFacts>& variables();

  // Of the variable at that position of variables(), initialised, and one of its pieces: chunks or blocks, part after part.
  std::uint64_t updates(std::size_t variable, std::uint64_t piece) const;
  // About how often a push of the chunk had to be repeated; 0 of an in-place variable. It goes round after 2^32.
  std::uint32_t retries(std::size_t variable, std::uint64_t piece) const;
  // Its floats, as they lie there; of an in-place one its values. Nothing where it stays torn.
  bool read(std::size_t variable, std::uint64_t piece, std::vector<float>& floats);
  // Of variables with rows: those of the piece, by their numbers in the whole, in the order of read(). None where a row is
  // longer than a block.
  std::vector<std::uint64_t> rows(std::size_t variable, std::uint64_t piece) const;

 private:
  struct Place {
    const shm::VariableShm& record;
    std::uint64_t piece;  // of this part
  };
  Place find(std::size_t variable, std::uint64_t piece) const;

  shm::JobSegments job_;
  std::vector<shm::CheckedRecord> records_;
  std::vector<Group> groups_;
  std::vector<std::uint32_t> positions_;  // of each group's first record in the directory
  std::vector<VariableFacts> facts_;
};

}  // namespace ps
