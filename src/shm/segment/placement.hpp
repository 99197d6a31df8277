// Where the records of a variable place its data: pure functions of the job's settings and of the records before
// (directory.D2). A declaration places a record with them; a process that attaches checks a record with them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "shm/segment/job_segments.hpp"
#include "update/dtypes.hpp"

namespace ps_shm::shm {

inline constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;

// With JobConfig::chunk_bytes kChunkBytesForGpu, a variable or part whose values have at least kLargeForGpu bytes is
// divided into chunks whose values have at least kGpuChunkBytes.
//
// A GPU pulls a variable by the copy engine if its chunks have at least 128 KiB (device/strategy.hpp), and by a kernel
// otherwise. Buffers are powers of two, so most chunks have more.
//
// By published figures a kernel pulls 64 MiB in 1.9 ms and the copy engine in 1.2 ms. For smaller variables the gain is
// less than a step's launches and slower pushes may cost. Larger buffers also take memory: there are four free ones of
// each class for each thread of each worker that there may be, so 128 MiB in buffers of 256 KiB for 16 workers of 8
// threads. For a variable of 64 MiB that is in proportion.
inline constexpr std::uint64_t kLargeForGpu = std::uint64_t{64} << 20, kGpuChunkBytes = std::uint64_t{128} << 10;

// A part: rows of the first axis, or all of a variable that is not partitioned. Counted in elements in place, and
// otherwise in floats: for another dtype, the floats that its bytes take.
struct PartPlan {
  std::uint64_t begin, elements;
};

// The parts of a partitioned variable: as even as complete rows allow, the longer ones first, as in TensorFlow's
// partitioners. Rows of a versioned variable whose bytes are not a multiple of a float's are not separated.
class PartsPlan {
 public:
  // Requires: every extent at least 1, their product at most kMaxElements.
  PartsPlan(const JobSegments& job, std::string_view name, std::span<const std::uint64_t> shape, DType dtype,
            Layout layout);

  // Of all parts together.
  std::uint64_t elements() const noexcept { return rows_ * row_elements_; }
  // If there are too many parts, one more than the directory can hold.
  std::uint32_t count() const noexcept { return count_; }
  // Requires: number < count().
  PartPlan part(std::uint32_t number) const noexcept;

 private:
  std::uint64_t rows_, row_elements_;
  std::uint32_t count_;
};

// Chooses buffer class and size of the record's chunks or blocks from its elements, slots and layout. An accumulator
// or a reserve takes those of `base`, the record that it belongs to. `chunk_bytes`: JobConfig's.
void choose_pieces(VariableShm& record, const VariableShm* base, std::uint64_t chunk_bytes) noexcept;

// The space that the records so far take, which determines where the next one goes. Wait-free.
class Occupancy {
 public:
  explicit Occupancy(const JobSegments& job);

  // Requires: records are added in the order of their positions. False: there is no such shard, or no such class.
  [[nodiscard]] bool add(const VariableShm& record) noexcept;

  struct Shard {
    std::uint64_t end, chunks = 0;                       // bytes and chunk numbers in use
    std::uint64_t load = 0;                              // bytes of variables and their optimizer slots
    std::array<std::uint64_t, kClasses> free_buffers{};  // where each class's free buffers begin; 0: none yet
  };
  const Shard& shard(std::uint32_t number) const noexcept { return shards_[number]; }
  std::uint32_t least_loaded() const noexcept;
  std::uint32_t variables() const noexcept { return variables_; }  // counts each part
  std::uint64_t gradients_end() const noexcept { return gradients_end_; }

 private:
  std::vector<Shard> shards_;
  std::uint32_t variables_ = 0;
  std::uint64_t gradients_end_ = kGradientsOffset;
};

// Chooses shard and offsets of a record whose chunks or blocks have just been chosen. Chooses a larger class if buffer
// numbers of that class do not reach so far into the shard. `before`: what the records at all earlier positions have
// taken; `base`: as above. Throws Error if the shard has too few numbers for the record's chunks or buffers.
void choose_place(VariableShm& record, const VariableShm* base, const JobSegments& job, const Occupancy& before);

// Elements of the complete variable that the record belongs to, and the bytes of all of them.
inline std::uint64_t element_count(const VariableShm& record) noexcept {
  std::uint64_t count = 1;
  for (std::uint32_t axis = 0; axis < record.axes; ++axis) count *= record.extents[axis];
  return count;
}
inline std::uint64_t value_bytes(const VariableShm& record) noexcept {
  return element_count(record) * bytes_of(static_cast<DType>(record.dtype));
}

inline bool is_versioned(const VariableShm& record) noexcept {
  return record.layout == static_cast<std::uint32_t>(Layout::kVersioned) ||
         record.layout == static_cast<std::uint32_t>(Layout::kSingleWriter);
}

// The dtype of arrays of its values where they are pulled, pushed and copied. In place bfloat16 is rounded where it lies
// (inplace_bfloat16.hpp), and its arrays are of float32.
inline DType array_dtype(const VariableShm& record) noexcept {
  return is_versioned(record) ? static_cast<DType>(record.dtype) : DType::kFloat32;
}
// Bytes that an element of `elements`, and of what is counted likewise, takes as a value of its dtype.
inline std::uint64_t bytes_of_element(const VariableShm& record) noexcept {
  return is_versioned(record) ? sizeof(float) : bytes_of(static_cast<DType>(record.dtype));
}

// Floats of a gradient, and of each array of optimizer state, for each float of such an array.
inline std::uint64_t gradients_per_float(const VariableShm& record) noexcept {
  return update::gradients_per_float(array_dtype(record));
}
// The floats of a gradient for the record. The last float of the values may be less than full.
inline std::uint64_t gradient_floats(const VariableShm& record) noexcept {
  if (array_dtype(record) == DType::kFloat32) return record.elements;
  const std::uint64_t each = gradients_per_float(record);
  return each == 1 ? record.elements
                   : std::min(each * record.elements, element_count(record) - each * record.part_begin);
}

inline bool is_variable(const VariableShm& record) noexcept { return record.base == 0; }
inline bool is_reserve(const VariableShm& record) noexcept { return (record.flags & kReserve) != 0; }
inline bool is_accumulator(const VariableShm& record) noexcept { return !is_variable(record) && !is_reserve(record); }

}  // namespace ps_shm::shm
