/// @file
/// The vocabulary of a job: the values that its settings take, its limits, and the states of its workers.
#pragma once

#include <cstdint>
#include <string_view>

#include "ps_shm/export.hpp"

namespace PS_SHM_API ps_shm {

// The numbers of these enumerations are stored in shared memory: never renumber them.

/// The element type of a variable or of a published tensor.
enum class DType : std::uint32_t {
  kFloat32 = 1,   ///< IEEE single precision, 4 bytes
  kFloat64 = 2,   ///< IEEE double precision, 8 bytes
  kBFloat16 = 3,  ///< the upper half of a float32, 2 bytes
  kInt64 = 4,     ///< signed, 8 bytes
  kFloat16 = 5,   ///< IEEE half precision, 2 bytes
  kInt32 = 6,     ///< signed, 4 bytes
  kInt16 = 7,     ///< signed, 2 bytes
  kInt8 = 8,      ///< signed, 1 byte
  kUint64 = 9,    ///< unsigned, 8 bytes
  kUint32 = 10,   ///< unsigned, 4 bytes
  kUint16 = 11,   ///< unsigned, 2 bytes
  kUint8 = 12,    ///< unsigned, 1 byte
  kBool = 13,     ///< 1 byte, 0 or 1
  /// Floats of 8 bits (Micikevicius et al. 2022), as machine learning uses them for weights:
  kFloat8E4M3 = 14,  ///< 4 bits of exponent, 3 of fraction, no infinity (E4M3FN)
  kFloat8E5M2 = 15,  ///< 5 bits of exponent, 2 of fraction
};

/// When a push takes effect, and what a worker waits for.
enum class Mode : std::uint32_t {
  kAsync = 1,  ///< asynchronous: a push applies at once
  /// Stale-synchronous parallel (Ho et al. 2013): a push applies at once, and a worker more than `staleness` steps
  /// ahead of the slowest blocks.
  kSsp = 2,
  kSync = 3,  ///< synchronous: a step applies the mean of its contributors' gradients
};

/// How a variable is stored.
enum class Layout : std::uint32_t {
  kVersioned = 1,  ///< in chunks, each of which a push replaces as a whole; required by mode sync
  kInplace = 2,    ///< as elements that are updated where they lie; required for pulling and pushing rows
  /// As kVersioned, for jobs with one worker: its pushes of float32 change long chunks where they lie, which is faster
  /// for optimizers with slots. If it is killed or stopped within a push, blocks of 128 elements of one chunk are new
  /// and the others old, instead of all old. No guest can change such a variable.
  kSingleWriter = 3
};

/// How pushes update in-place variables.
enum class Adds : std::uint32_t {
  kExact = 1,  ///< atomic updates: no update is lost
  kRacy = 2    ///< Hogwild! updates (Niu et al. 2011): concurrent updates of an element may be lost
};

/// How mode sync combines the gradients of a step.
enum class Reduce : std::uint32_t {
  kOrdered = 1,  ///< one gradient segment per worker, combined in rank order: deterministic
  kAtomic = 2,   ///< one accumulator per variable, filled as gradients arrive: less memory, not deterministic
};

/// How variables are distributed over the shards.
enum class Placement : std::uint32_t {
  kRoundRobin = 1,  ///< each variable goes to the next shard
  /// Each variable goes to the shard with the fewest bytes. Of variables that are declared together, the largest is
  /// placed first.
  kGreedy = 2,
  kPartition = 3,  ///< every variable is divided into parts along its first axis, and the parts go round-robin
};

/// How the rows of a partitioned in-place variable are assigned to its parts. The parts of a versioned variable are
/// always ranges.
enum class PartitionBy : std::uint32_t {
  kRange = 1,  ///< consecutive rows
  /// Row r goes to part r modulo the number of parts (TensorFlow's "mod"), so that frequent rows that lie together are
  /// spread over the parts.
  kHash = 2,
};

/// The memory (NUMA) node that a shard's memory should come from.
enum class Numa : std::uint32_t {
  kAuto = 1,   ///< on a machine with several nodes: node k modulo their number for shard k
  kNone = 2,   ///< no preference: wherever the first touch puts a page
  kNodes = 3,  ///< the entries of JobConfig::numa_nodes, in turn
};

/// The state of a rank. It is not stored: it follows from the worker table and the kernel's locks.
enum class WorkerState {
  kNever,  ///< no worker has had this rank
  kAlive,  ///< the rank's owner is alive
  kLeft,   ///< the rank's last owner left
  kDead    ///< the rank's last owner died without leaving
};

/// Returns the name of a value as settings and messages spell it, such as "float32" or "round-robin"; "unknown" for a
/// number that is no value. The text is a constant of the library.
///
/// @progress wait-free.
PS_SHM_API const char* to_string(DType dtype) noexcept;
PS_SHM_API const char* to_string(Mode mode) noexcept;                 ///< @overload
PS_SHM_API const char* to_string(Layout layout) noexcept;             ///< @overload
PS_SHM_API const char* to_string(Adds adds) noexcept;                 ///< @overload
PS_SHM_API const char* to_string(Reduce reduce) noexcept;             ///< @overload
PS_SHM_API const char* to_string(Placement placement) noexcept;       ///< @overload
PS_SHM_API const char* to_string(PartitionBy partition_by) noexcept;  ///< @overload
PS_SHM_API const char* to_string(Numa numa) noexcept;                 ///< @overload
PS_SHM_API const char* to_string(WorkerState state) noexcept;         ///< @overload

/// The number of the value for which `name_of` returns `name`, as parse() says. `name_of` returns "unknown" for numbers
/// that are no values; these are consecutive, from 0 or 1 on.
///
/// @throws as parse().
PS_SHM_API int number_of(std::string_view name, const char* (*name_of)(int number) noexcept);

/// Returns the value of an enumeration that has this name: `parse<Mode>("sync")`. There is one for each enumeration of
/// this library that has a to_string(), whose names it takes; case, hyphens and underscores do not matter.
///
/// @throws Error (kInvalidArgument), which lists the names that there are.
template <class Enum>
Enum parse(std::string_view name) {
  return Enum(number_of(name, [](int number) noexcept { return to_string(Enum(number)); }));
}

/// The size of one element in bytes; 0 if there is no such type.
///
/// @progress wait-free.
PS_SHM_API std::uint32_t bytes_of(DType dtype) noexcept;

/// Staleness of the pushes so far. The staleness of one push of a chunk (of an in-place variable: of a block) is the
/// number of updates by other workers that reached the chunk between this worker's pull and its push.
struct StalenessSummary {
  std::uint64_t count = 0;  ///< how many such pushes there were; 0: nothing was measured, and the others mean nothing
  double mean = 0;          ///< arithmetic mean
  std::uint64_t p50 = 0;    ///< median: exact up to 63; above, it is rounded down to a power of two
  std::uint64_t p99 = 0;    ///< 99th percentile, as exact as the median
  std::uint64_t max = 0;    ///< maximum
};

/// The most ranks of a job, and so the most workers at one time.
inline constexpr std::uint32_t kMaxWorkers = 256;
/// The most ps tasks of a job.
inline constexpr std::uint32_t kMaxTasks = 64;
/// The most threads of a worker.
inline constexpr std::uint32_t kMaxThreads = 64;

}  // namespace ps_shm
