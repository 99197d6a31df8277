// Finds which worker pushed the first NaN, by watching the values of a job's float variables and tables by key. For the
// inspector. It reads what pushes leave behind anyway, so workers do no additional work.
//
// A versioned chunk names the rank and step of its last update in the header of its buffer. So do the buffers that a
// chunk had before, until they are reused. The first update with a NaN is therefore known for certain if the update
// before it was seen to be finite. In sync mode an update belongs to a step; the gradients tell which of its
// contributors it was, as long as they exist. In-place elements name no rank: every worker that has pushed between two
// checks, or was pushing at one of them, is a suspect. Rows of a table name no rank either, and every worker is one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "inspection/tables.hpp"
#include "shm/segment/directory.hpp"
#include "shm/segment/job_segments.hpp"

namespace ps_shm {

struct NanFound {
  std::string variable;       // empty: it is in a row of a table
  std::string table{};        // empty: it is in a variable
  std::uint64_t key = 0;      // of the row
  std::uint64_t element = 0;  // index in the row, or in the variable of the first one of its chunk or block
  float value = 0;            // NaN, or an infinity
  std::uint64_t step = 0;     // global step of the update
  // Ranks, one of which pushed it. Empty: its initial values contain it, or no rank is named.
  std::vector<std::uint32_t> suspects{};
  bool is_certain = false;  // the previous update was finite, and there is one suspect
  bool is_initial = false;  // nothing was pushed to it
};

class NanWatch {
 public:
  explicit NanWatch(shm::JobSegments& job) : job_(job) {}

  // Checks what was pushed since the previous call. Throws Error as JobView does.
  std::optional<NanFound> look();

 private:
  // The state of a chunk or block when it was last finite.
  struct Seen {
    std::uint64_t pushes = 0;                  // number of pushes + 1; 0: never checked
    std::vector<std::uint64_t> rows, of_rank;  // in place: pushes of its rows, and all pushes, by rank
    std::vector<bool> is_pushing;              // in place: whether the rank was pushing
  };

  std::optional<NanFound> look_at_all();
  std::optional<NanFound> look_at_tables();
  std::optional<NanFound> look_versioned(const shm::VariableShm& variable, std::vector<Seen>& seen);
  std::optional<NanFound> look_inplace(const shm::VariableShm& variable, std::vector<Seen>& seen);
  std::vector<std::uint64_t> buffers_of(const shm::VariableShm& variable) const;
  std::vector<std::uint32_t> guilty_of(const shm::VariableShm& variable, std::uint64_t step) const;
  Seen count_inplace(const shm::VariableShm& variable, std::uint64_t block) const;

  shm::JobSegments& job_;
  std::vector<shm::CheckedRecord> records_;                    // by position
  std::map<const shm::VariableShm*, std::vector<Seen>> seen_;  // by piece
  std::vector<TableView> tables_;
  std::uint64_t looks_ = 0;  // at the tables
};

}  // namespace ps_shm
