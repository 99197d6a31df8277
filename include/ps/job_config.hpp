// What a job is: the settings that its ps fixes when it creates the job, and those that may change while it runs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ps/export.hpp"
#include "ps/optimizer.hpp"
#include "ps/types.hpp"

namespace PS_API ps {

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
  std::vector<std::uint32_t> numa_nodes;  // at most 64
  bool huge_pages = false;                // ask for them, where the system has any for shared memory
  std::string restore;                    // folder of a checkpoint that the job begins with; empty: with first values
  std::uint64_t first_step = 0;           // the checkpoint's: a Server fills it in
  std::string group;                      // whose users share the job; empty: only its ps's user has it
  std::uint32_t elastic_min = 0, elastic_max = 0;  // bounds of the number of workers that a launcher keeps; 0: fixed

  bool operator==(const JobConfig&) const = default;
};

// What can be changed while the job runs (ps::JobControl); it holds from every worker's next step on.
struct LiveSettings {
  Mode mode = Mode::kAsync;     // async and ssp interchange; nothing changes to or from sync
  std::uint64_t staleness = 0;  // ssp
  std::uint32_t quorum = 0;     // sync; 0: all alive
  float learning_rate = 0.0F;   // at step 0: the schedule goes on multiplying it
  float clip_norm = 0.0F;       // 0: none
  std::uint32_t workers = 0;    // how many a launcher shall keep, within elastic_min and elastic_max

  bool operator==(const LiveSettings&) const = default;
};

// Throws Error unless `config` can be run; says which setting is at fault.
PS_API void check(const JobConfig& config);

// Throws Error unless a ps with settings `wanted` may take over the job of settings `there`: names what differs.
PS_API void check_same(const JobConfig& there, const JobConfig& wanted);

// Throws Error unless `settings` can follow in a job of that configuration.
PS_API void check(const LiveSettings& settings, const JobConfig& config);

// Throws Error unless `name` may name a job: it becomes part of a file name.
PS_API void check_job_name(const std::string& name);

}  // namespace ps
