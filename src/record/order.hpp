// The order that the recordings of a job define: for each chunk, which worker made which version, and how often it was
// pulled.
//
// Chunks are numbered over all variables, in the order of their names. A version v of a chunk is pulled after the push
// that made it, and before the push that makes v + 1. Together with each worker's own order this is the complete
// order. Since each recorded swap and pull took place at some moment, these orders contain no cycle. The constructor
// checks this nevertheless, because the files may contain anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "record/cursor.hpp"

namespace ps_shm::record {

struct Recorded {
  std::string name;  // for messages
  std::span<const std::byte> bytes;
};

class Order {
 public:
  // The recordings of one rank must be adjacent, in the order of its lives. Throws Error if no job can have left them.
  explicit Order(const std::vector<Recorded>& records);

  std::uint64_t chunks() const noexcept { return chunks_.size(); }
  std::uint64_t pushes() const noexcept { return all_pushes_; }
  std::uint64_t chunk(const std::string& variable, std::uint64_t piece) const { return first_.at(variable) + piece; }

  // How often version v of the chunk is pulled.
  std::uint32_t pulls(std::uint64_t chunk, std::uint64_t version) const noexcept {
    const auto& counts = chunks_[chunk].pulls;
    return version < counts.size() ? counts[version] : 0;
  }
  // Whether the push with which a recording ends, at that version, reached its swap.
  bool was_made(std::uint64_t chunk, std::uint64_t version, std::uint32_t record) const noexcept {
    const auto& makers = chunks_[chunk].makers;
    return version < makers.size() && makers[version] == record + 1;
  }
  // The global step before the step with which a recording ends; nothing if that step was not counted.
  std::optional<std::uint64_t> last_step(std::uint32_t record) const {
    const auto found = last_steps_.find(record);
    return found == last_steps_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  struct Chunk {
    std::vector<std::uint16_t> makers;  // record + 1 of the push from version v; 0: not found yet
    std::vector<std::uint32_t> pulls;
  };
  struct Tried {
    std::uint64_t chunk, version;
    std::uint32_t record;
  };

  class Walk;

  void number(const std::vector<Recorded>& records);
  void note_pushes(const std::vector<Recorded>& records);
  void note_pulls(const std::vector<Recorded>& records);
  void note_steps(const std::vector<Recorded>& records);
  void require_no_circle(const std::vector<Recorded>& records) const;
  std::uint64_t chunk_of(const Cursor& cursor) const {
    const Event& event = cursor.peek();
    return first_.at(cursor.variables()[event.variable].name) + event.piece;
  }

  std::map<std::string, std::uint64_t> first_;  // first chunk of a variable
  std::vector<Chunk> chunks_;
  std::uint64_t all_pushes_ = 0;
  std::vector<Tried> tried_;  // pushes with which a recording ends
  std::map<std::uint32_t, std::uint64_t> last_steps_;
};

}  // namespace ps_shm::record
