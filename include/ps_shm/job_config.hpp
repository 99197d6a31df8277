/// @file
/// What a job is: the settings that its ps fixes when it creates the job, and those that can change while it runs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/export.hpp"
#include "ps_shm/optimizer.hpp"
#include "ps_shm/types.hpp"

namespace PS_SHM_API ps_shm {

/// A value of JobConfig::chunk_bytes: by the variable's size, as with 0, but in variables of at least 64 MiB large
/// enough that GPU workers pull them by the copy engine (docs/gpu.md). `--chunk-bytes gpu`.
inline constexpr std::uint64_t kChunkBytesForGpu = ~std::uint64_t{0};

/// The settings of a job. docs/options.md lists the programs' options for them.
struct JobConfig {
  std::string job{};          ///< name: 1 to 64 characters of [A-Za-z0-9_-], the first one a letter or digit
  std::uint32_t workers = 1;  ///< number of workers that the job starts with; the first sync step waits for all of them
  std::uint32_t max_workers = 0;     ///< most at one time; 0: max(16, 2 * workers), up to kMaxWorkers; single-writer: 1
  std::uint32_t threads = 1;         ///< threads of a worker that may push at once; each has free buffers of its own
  Mode mode = Mode::kAsync;          ///< when a push takes effect, and what a worker waits for
  std::uint64_t staleness = 0;       ///< ssp: how many steps a worker may be ahead of the slowest
  std::uint32_t quorum = 0;          ///< sync: gradients required per step; 0: one from each live worker
  std::uint64_t stale_limit = 0;     ///< async, ssp: age, in steps of others, from which on a step is dropped; 0: none
  Reduce reduce = Reduce::kOrdered;  ///< sync: how the gradients of a step are combined
  Layout layout = Layout::kVersioned;  ///< of variables whose specification has none
  /// Chunk size of versioned variables: a power of two, 1 KiB to 1 MiB; 0: by their size; or kChunkBytesForGpu.
  std::uint64_t chunk_bytes = 0;
  Adds adds = Adds::kExact;  ///< how pushes update in-place variables
  Optimizer optimizer{};     ///< its rule is that of variables whose specification has none
  std::uint64_t steps = 0;   ///< global step at which the job is finished; 0: no limit
  /// Random seed of initial values and data order, and of the hash by which tables by key place their rows; unset: 1,
  /// and a random hash.
  std::optional<std::uint64_t> seed{};
  Seconds linger{30};  ///< how long the ps stays when no worker is left
  /// Limit on waiting for live peers in step() and barrier(). When it expires, a sync step goes on without them; a step
  /// of mode ssp and a barrier() throw Timeout. std::nullopt: no limit.
  WaitLimit step_timeout{};
  std::uint32_t ps_tasks = 1;                    ///< number of ps tasks; each has one shard
  Placement placement = Placement::kRoundRobin;  ///< how variables are distributed over the shards
  std::uint32_t partitions = 0;  ///< placement partition: parts per variable; 0: as many as there are shards
  /// Placement partition, instead of `partitions`: as few parts as keep each within this many bytes. 0: unused.
  std::uint64_t max_part_bytes = 0;
  PartitionBy partition_by = PartitionBy::kRange;  ///< placement partition: for in-place variables
  /// Variable name -> shard, for variables placed by hand (at most 64). They are not partitioned, whatever the
  /// placement.
  std::map<std::string, std::uint32_t> place{};
  Numa numa = Numa::kAuto;                  ///< memory nodes of the shards
  std::vector<std::uint32_t> numa_nodes{};  ///< for Numa::kNodes: 1 to 64 nodes
  bool huge_pages = false;                  ///< request huge pages, if the system has any for shared memory
  std::string restore{};         ///< folder of a checkpoint whose state the job begins with; empty: with initial values
  std::uint64_t first_step = 0;  ///< global step of that checkpoint; filled in by Server
  std::string group{};           ///< Unix group whose users share the job; empty: only the user of its ps
  std::uint32_t elastic_min = 0;  ///< fewest workers that a launcher keeps in an elastic job; 0: the number is fixed
  std::uint32_t elastic_max = 0;  ///< most workers that a launcher keeps in an elastic job; 0: the number is fixed

  bool operator==(const JobConfig&) const = default;
};

/// Runtime settings: those that can change while the job runs (JobControl). A change takes effect at every worker's
/// next step.
struct LiveSettings {
  Mode mode = Mode::kAsync;     ///< async and ssp can change into each other; sync cannot be entered or left
  std::uint64_t staleness = 0;  ///< ssp: how many steps a worker may be ahead of the slowest
  std::uint32_t quorum = 0;     ///< sync: gradients required per step; 0: one from each live worker
  /// async, ssp: a step is dropped if the gradient of its first push is this many global steps of other workers old, or
  /// older; 0: no limit.
  std::uint64_t stale_limit = 0;
  float lr = 0.0F;  ///< at step 0; the schedule multiplies it
  float clip_norm = 0.0F;      ///< 0: no clipping
  float momentum = 0.0F;       ///< momentum, nesterov: their coefficient
  float beta1 = 0.0F;          ///< adam, adamw: decay of m
  std::uint32_t workers = 0;   ///< number of workers that a launcher keeps, within elastic_min and elastic_max

  bool operator==(const LiveSettings&) const = default;
};

/// Checks that a job can run with these settings.
///
/// @throws Error (kInvalidArgument), which names the setting at fault.
PS_SHM_API void check(const JobConfig& config);

/// Checks that a ps with the settings `wanted` may take over a job that has the settings `there`.
///
/// @throws Error (kIncompatible), which names the first setting that differs.
PS_SHM_API void check_same(const JobConfig& there, const JobConfig& wanted);

/// Checks that a job with the configuration `config` can change to the runtime settings `settings`.
///
/// @throws Error (kInvalidArgument), which names the setting at fault.
PS_SHM_API void check(const LiveSettings& settings, const JobConfig& config);

/// Checks that `name` can name a job. It becomes part of a file name.
///
/// @throws Error (kInvalidArgument) otherwise.
PS_SHM_API void check_job_name(const std::string& name);

}  // namespace ps_shm
