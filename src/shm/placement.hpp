// Where a variable's records lie: pure functions of the job's settings and of the records before (directory.D2).
// Declaring places a record with them, attaching checks one.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "shm/job_segments.hpp"

namespace ps::shm {

inline constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;

// A part: rows of the first axis, or the whole of a variable that is not partitioned. In floats, as all places are: those
// that its elements' bytes take, where these are of another type.
struct PartPlan {
  std::uint64_t begin, elements;
};

// The parts that a variable is cut into: as even as whole rows allow, the longer ones first, as TensorFlow's partitioners
// do. Rows whose bytes are no whole floats stay together.
class PartsPlan {
 public:
  // Requires: every extent at least 1, their product at most kMaxElements.
  PartsPlan(const JobSegments& job, std::string_view name, std::span<const std::uint64_t> shape, DType dtype);

  // Of all parts together.
  std::uint64_t elements() const noexcept { return rows_ * row_elements_; }
  // One more than the directory can have where there are too many.
  std::uint32_t count() const noexcept { return count_; }
  // Requires: number < count().
  PartPlan part(std::uint32_t number) const noexcept;

 private:
  std::uint64_t rows_, row_elements_;
  std::uint32_t count_;
};

// Chooses class and size of the record's chunks (blocks) by its elements, slots and layout; an accumulator's or a
// reserve's are those of `base`, the record that it is for.
void choose_pieces(VariableShm& record, const VariableShm* base, std::uint64_t chunk_bytes) noexcept;

// What the records at the positions so far leave for the next one. Wait-free.
class Occupancy {
 public:
  explicit Occupancy(const JobSegments& job);

  // Requires: records come in the order of their positions. False: there is no such shard, or no such class.
  [[nodiscard]] bool add(const VariableShm& record) noexcept;

  struct Shard {
    std::uint64_t end, chunks = 0;                 // bytes and chunk numbers in use
    std::uint64_t load = 0;                        // floats of variables and their slots
    std::array<std::uint64_t, kClasses> spares{};  // where those of a class lie; 0: it has none yet
  };
  const Shard& shard(std::uint32_t number) const noexcept { return shards_[number]; }
  std::uint32_t least_loaded() const noexcept;
  std::uint32_t variables() const noexcept { return variables_; }  // their parts, that is
  std::uint64_t gradients_end() const noexcept { return gradients_end_; }

 private:
  std::vector<Shard> shards_;
  std::uint32_t variables_ = 0;
  std::uint64_t gradients_end_ = kGradientsOffset;
};

// Chooses shard and offsets of a record whose pieces have just been chosen, and a larger class where that one has no
// numbers for buffers so far into the shard. `before`: of the records at all positions before its own; `base`: as above.
// Throws Error where the shard has not enough numbers for its chunks or buffers.
void choose_place(VariableShm& record, const VariableShm* base, const JobSegments& job, const Occupancy& before);

// How many elements the variable has that the record is of; and the bytes of all of them.
inline std::uint64_t element_count(const VariableShm& record) noexcept {
  std::uint64_t count = 1;
  for (std::uint32_t axis = 0; axis < record.axes; ++axis) count *= record.extents[axis];
  return count;
}
inline std::uint64_t value_bytes(const VariableShm& record) noexcept {
  return element_count(record) * bytes_of(static_cast<DType>(record.dtype));
}

inline bool is_variable(const VariableShm& record) noexcept { return record.base == 0; }
inline bool is_reserve(const VariableShm& record) noexcept { return (record.flags & kReserve) != 0; }
inline bool is_accumulator(const VariableShm& record) noexcept { return !is_variable(record) && !is_reserve(record); }

}  // namespace ps::shm
