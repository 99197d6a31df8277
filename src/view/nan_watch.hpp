// Who pushed the first NaN: a watch over the values of a job's float32 variables, for the inspector. It reads what pushes
// leave behind anyway, so workers do nothing for it.
//
// Versioned chunks name the rank and step of their last update in the buffer's header. So do the buffers that a chunk
// had before, for as long as nobody uses them again. So the first update with a NaN is known for certain where the one
// before it was seen without. In sync mode an update is a step's: which of its contributors is told by their gradients,
// as long as they are there. In-place elements name nobody. Who has pushed between two looks, or was about to at one of
// them, may have done it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shm/job_segments.hpp"
#include "shm/validation.hpp"

namespace ps {

struct NanFound {
  std::string variable;
  std::uint64_t element = 0;  // the first one of its chunk or block, in the variable
  float value = 0;            // NaN, or an infinity
  std::uint64_t step = 0;     // global step of the update
  // Ranks, one of which pushed it. None: its initial values have it, or nobody is named.
  std::vector<std::uint32_t> suspects{};
  bool is_certain = false;  // the update before was finite, and there is one suspect
  bool is_initial = false;  // nobody has pushed to it
};

class NanWatch {
 public:
  explicit NanWatch(shm::JobSegments& job) : job_(job) {}

  // Looks at what has been pushed since the look before. Throws Error as JobView does.
  std::optional<NanFound> look();

 private:
  // What a chunk or block was when it was finite.
  struct Seen {
    std::uint64_t pushes = 0;                  // + 1; 0: never yet
    std::vector<std::uint64_t> rows, of_rank;  // in place: pushes of its rows, and of whatever, by rank
    std::vector<bool> is_pushing;              // the same: who was in the middle of a push
  };

  std::optional<NanFound> look_at_all();
  std::optional<NanFound> look_versioned(const shm::VariableShm& variable, std::vector<Seen>& seen);
  std::optional<NanFound> look_inplace(const shm::VariableShm& variable, std::vector<Seen>& seen);
  std::vector<std::uint64_t> buffers_of(const shm::VariableShm& variable) const;
  std::vector<std::uint32_t> guilty_of(const shm::VariableShm& variable, std::uint64_t step) const;
  Seen count_inplace(const shm::VariableShm& variable, std::uint64_t block) const;

  shm::JobSegments& job_;
  std::vector<shm::CheckedRecord> records_;                    // by position
  std::map<const shm::VariableShm*, std::vector<Seen>> seen_;  // by piece
};

}  // namespace ps
