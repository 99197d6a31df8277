// The order that a job's records say: for each chunk, which worker made which version, and how often it was pulled.
//
// Chunks are numbered over all variables, by name. A version v of a chunk is pulled behind the push that made it, and in
// front of the push that made v + 1. With each worker's own order that is all of it. The moment in which each recorded swap
// and pull took place shows that these orders have no circle; the constructor looks all the same, for the files may be
// any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "record/cursor.hpp"

namespace ps::record {

struct Recorded {
  std::string name;  // for messages
  std::span<const std::byte> bytes;
};

class Order {
 public:
  // Those of one rank stand together, in the order of its lives. Throws Error where no job can have left these records.
  explicit Order(const std::vector<Recorded>& records);

  std::uint64_t chunks() const noexcept { return chunks_.size(); }
  std::uint64_t pushes() const noexcept { return all_pushes_; }
  std::uint64_t chunk(const std::string& variable, std::uint64_t piece) const { return first_.at(variable) + piece; }

  // How often version v of the chunk is pulled.
  std::uint32_t pulls(std::uint64_t chunk, std::uint64_t version) const noexcept {
    const auto& counts = chunks_[chunk].pulls;
    return version < counts.size() ? counts[version] : 0;
  }
  // Whether the push that a record ends in, at that version, came to its swap.
  bool was_made(std::uint64_t chunk, std::uint64_t version, std::uint32_t record) const noexcept {
    const auto& makers = chunks_[chunk].makers;
    return version < makers.size() && makers[version] == record + 1;
  }
  // The global step before the step that a record ends in; nothing where that was not counted.
  std::optional<std::uint64_t> last_step(std::uint32_t record) const {
    const auto found = last_steps_.find(record);
    return found == last_steps_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  struct Chunk {
    std::vector<std::uint16_t> makers;  // record + 1, of the push from version v; 0: not found yet
    std::vector<std::uint32_t> pulls;
  };
  struct Tried {
    std::uint64_t chunk, version;
    std::uint32_t record;
  };

  void number(const std::vector<Recorded>& records);
  void note_pushes(const std::vector<Recorded>& records);
  void note_pulls(const std::vector<Recorded>& records);
  void note_steps(const std::vector<Recorded>& records);
  void require_no_circle(const std::vector<Recorded>& records) const;
  std::uint64_t chunk_of(const Cursor& cursor) const {
    const Event& event = cursor.peek();
    return first_.at(cursor.variables()[event.variable].name) + event.piece;
  }

  std::map<std::string, std::uint64_t> first_;  // chunk of a variable
  std::vector<Chunk> chunks_;
  std::uint64_t all_pushes_ = 0;
  std::vector<Tried> tried_;  // of records that end in a push
  std::map<std::uint32_t, std::uint64_t> last_steps_;
};

}  // namespace ps::record
