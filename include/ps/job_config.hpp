// What a job is: the vocabulary of modes, layouts and types, and the settings that its ps fixes when it creates the job.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ps/optimizer.hpp"

namespace ps {

// The numbers of these enumerations stand in the segments: never renumber.
enum class DType : std::uint32_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kBFloat16 = 3,
  kInt64 = 4
};  // float32 can be stored today
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

const char* to_string(DType dtype) noexcept;
const char* to_string(Mode mode) noexcept;
const char* to_string(Layout layout) noexcept;
const char* to_string(Adds adds) noexcept;
const char* to_string(Reduce reduce) noexcept;
const char* to_string(Placement placement) noexcept;
const char* to_string(PartitionBy partition_by) noexcept;

// A job has at most this many ranks (and so workers at one time), ps tasks, and threads of a worker.
inline constexpr std::uint32_t kMaxWorkers = 256;
inline constexpr std::uint32_t kMaxTasks = 64;
inline constexpr std::uint32_t kMaxThreads = 64;

struct JobConfig {
  std::string job;                     // 1 to 64 of [A-Za-z0-9_-], beginning with a letter or digit
  std::uint32_t workers = 1;           // how many workers the job starts with; the first sync step waits for them
  std::uint32_t max_workers = 0;       // how many may be there at one time; 0: max(16, 2 * workers)
  std::uint32_t threads = 1;           // how many threads of a worker may push at one time: each gets spare buffers
  Mode mode = Mode::kAsync;            //
  std::uint64_t staleness = 0;         // ssp: how many steps a worker may be ahead of the slowest
  std::uint32_t quorum = 0;            // sync: a step closes with so many gradients; 0: of all alive
  Reduce reduce = Reduce::kOrdered;    // sync
  Layout layout = Layout::kVersioned;  // of variables whose specification does not choose one
  std::uint64_t chunk_bytes = 0;       // of versioned variables' chunks: 1 KiB to 1 MiB, a power of two; 0: by size
  Adds adds = Adds::kExact;            // how in-place variables are added to
  Optimizer optimizer;                 // of variables whose specification does not choose a rule
  std::uint64_t steps = 0;             // the job is finished when the global step gets here; 0: no limit
  std::uint64_t seed = 1;              // of initial values and data order
  double linger_seconds = 30.0;        // how long the ps stays after the last worker has left
  double step_timeout_seconds = 0.0;   // of a wait for live peers: sync goes on without them, ssp gives up; 0: none
  std::uint32_t tasks = 1;             // ps tasks, each with a shard
  Placement placement = Placement::kRoundRobin;
  std::uint32_t partitions = 0;      // placement partition: parts of a variable; 0: as many as there are shards
  std::uint64_t max_part_bytes = 0;  // placement partition: instead, as few parts as keep each below; 0: not
  PartitionBy partition_by = PartitionBy::kRange;  // placement partition: of in-place variables
  std::map<std::string, std::uint32_t> place;  // variable -> shard, by hand: whole, whatever the placement (at most 64)
  Numa numa = Numa::kAuto;
  std::vector<std::uint32_t> numa_nodes;           // at most 64
  bool huge_pages = false;                         // ask for them, where the system has any for shared memory
  std::string group;                               // whose users share the job; empty: only its ps's user has it
  std::uint32_t elastic_min = 0, elastic_max = 0;  // bounds of the number of workers that a launcher keeps; 0: fixed
};

// What can be changed while the job runs (ps::JobControl); it holds from every worker's next step on.
struct LiveSettings {
  Mode mode = Mode::kAsync;     // async and ssp interchange; nothing changes to or from sync
  std::uint64_t staleness = 0;  // ssp
  std::uint32_t quorum = 0;     // sync; 0: all alive
  float learning_rate = 0.0F;   // at step 0: the schedule goes on multiplying it
  float clip_norm = 0.0F;       // 0: none
  std::uint32_t workers = 0;    // how many a launcher shall keep, within elastic_min and elastic_max
};

// Throws Error unless `config` can be run; says which setting is at fault.
void check(const JobConfig& config);

// Throws Error unless a ps with settings `wanted` may take over the job of settings `there`: names what differs.
void check_same(const JobConfig& there, const JobConfig& wanted);

// Throws Error unless `settings` can follow in a job of that configuration.
void check(const LiveSettings& settings, const JobConfig& config);

// Throws Error unless `name` may name a job: it becomes part of a file name.
void check_job_name(const std::string& name);

}  // namespace ps
