// The vocabulary of a job: what its settings choose among, its limits, and what becomes of its workers.
#pragma once

#include <cstdint>

#include "ps/export.hpp"

namespace PS_API ps {

// The numbers of these enumerations stand in the segments: never renumber.
enum class DType : std::uint32_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kBFloat16 = 3,
  kInt64 = 4,
  kFloat16 = 5,
  kInt32 = 6,
  kInt16 = 7,
  kInt8 = 8,
  kUint64 = 9,
  kUint32 = 10,
  kUint16 = 11,
  kUint8 = 12,
  kBool = 13,  // a byte, 0 or 1
};
enum class Mode : std::uint32_t {
  kAsync = 1,  // a push applies at once
  kSsp = 2,    // the same; who is more than `staleness` steps ahead of the slowest waits
  kSync = 3,   // a step is the mean over its contributors
};
enum class Layout : std::uint32_t { kVersioned = 1, kInplace = 2 };
enum class Adds : std::uint32_t { kExact = 1, kRacy = 2 };
enum class Reduce : std::uint32_t {
  kOrdered = 1,  // sync: a gradient segment per worker, combined in rank order: deterministic
  kAtomic = 2,   // sync: one accumulator per variable, filled as gradients come: less memory, not deterministic
};
enum class Placement : std::uint32_t {
  kRoundRobin = 1,  // the next variable to the next shard
  kGreedy = 2,     // the next variable to the shard with the fewest bytes; of those declared together the largest first
  kPartition = 3,  // every variable in parts along its first axis, these round robin
};
// Which rows of a partitioned in-place variable make a part; of versioned ones always a range.
enum class PartitionBy : std::uint32_t {
  kRange = 1,  // rows that follow each other
  kHash = 2,   // row r goes to part r modulo the parts (TensorFlow's "mod"): frequent rows that lie together are spread
};
enum class Numa : std::uint32_t {
  kAuto = 1,   // shard k on memory node k modulo their number, where there are several
  kNone = 2,   // wherever the first touch puts it
  kNodes = 3,  // shard k on the k-th of numa_nodes, round and round
};

// What has become of a rank. (Not stored: it follows from the worker table and its locks.)
enum class WorkerState { kNever, kAlive, kLeft, kDead };

PS_API const char* to_string(DType dtype) noexcept;
PS_API std::uint32_t bytes_of(DType dtype) noexcept;  // of one element; 0: there is no such type
PS_API const char* to_string(Mode mode) noexcept;
PS_API const char* to_string(Layout layout) noexcept;
PS_API const char* to_string(Adds adds) noexcept;
PS_API const char* to_string(Reduce reduce) noexcept;
PS_API const char* to_string(Placement placement) noexcept;
PS_API const char* to_string(PartitionBy partition_by) noexcept;
PS_API const char* to_string(WorkerState state) noexcept;

// Staleness of the pushes so far: how many updates by others landed on a chunk (in-place: block) between the pull and
// the push of it.
struct StalenessSummary {
  double mean = 0;
  std::uint64_t p50 = 0, p99 = 0, max = 0;
};

// A job has at most this many ranks (and so workers at one time), ps tasks, and threads of a worker.
inline constexpr std::uint32_t kMaxWorkers = 256;
inline constexpr std::uint32_t kMaxTasks = 64;
inline constexpr std::uint32_t kMaxThreads = 64;

}  // namespace ps
