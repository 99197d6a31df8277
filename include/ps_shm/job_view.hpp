/// @file
/// A read-only view of a job, live or dead: its settings, the values of its variables, its workers and their counters.
/// @code
///   const ps_shm::JobView view("demo");
///   for (const ps_shm::WorkerInfo& worker : view.workers())
///     std::printf("rank %u: %s, loss %g\n", worker.rank, ps_shm::to_string(worker.state), worker.loss);
///   const std::vector<float> weights = view.values("weights");
/// @endcode
/// A JobView is used by one thread at a time. After a fork() it belongs to the parent: in the child its destructor does
/// nothing, and every call that needs the shared memory throws Error with kInvalidState.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ps_shm/export.hpp"
#include "ps_shm/job_config.hpp"
#include "ps_shm/snapshot.hpp"
#include "ps_shm/table_spec.hpp"
#include "ps_shm/table_statistics.hpp"
#include "ps_shm/types.hpp"

namespace PS_SHM_API ps_shm {

/// The GPU of a worker's GpuLink or GpuRows, and what that has chosen to do with it.
struct GpuUse {
  std::string uuid;                    ///< as nvidia-smi prints it, without "GPU-" or "MIG-"; empty: unknown
  std::string pci_address;             ///< "0000:1b:00.0"; empty: unknown
  int node = -1;                       ///< the memory node next to it; -1: unknown
  std::uint64_t registered_bytes = 0;  ///< shared memory that is registered with CUDA
  std::string pulls;                   ///< "kernel", "copy engine" (small chunks: a kernel), "through host", "bfloat16"
  std::string pushes;                  ///< "staged", "through host"
  bool native_adds = false;            ///< the GPU itself adds to in-place variables
};

/// The state and the counters of a rank. The counters include those of the rank's earlier owners.
struct WorkerInfo {
  std::uint32_t rank = 0;                   ///< its number
  WorkerState state = WorkerState::kNever;  ///< whether it has a living owner
  std::uint32_t pid = 0;                    ///< process of the rank's last owner
  std::uint64_t owners = 0;                 ///< number of processes that have owned this rank so far
  std::uint64_t steps = 0;                  ///< without those whose gradient was dropped
  std::uint64_t pushes = 0;                 ///< per variable
  std::uint64_t pulls = 0;                  ///< per variable
  std::uint64_t push_retries = 0;           ///< repeated pushes of a chunk
  std::uint64_t pull_retries = 0;           ///< repeated pulls of a chunk
  std::uint64_t dropped = 0;                ///< gradients that came too late, for a step or an age limit
  std::uint64_t clock = 0;                  ///< ssp: steps done since the mode began
  std::uint64_t max_clock_skew = 0;   ///< ssp: largest clock skew, in steps ahead of the slowest, at which a step began
  std::uint64_t examples = 0;         ///< processed in this job
  std::uint64_t step_examples = 0;    ///< processed per global step, lately
  std::uint64_t examples_offset = 0;  ///< sync: the examples at global step s were this + s * step_examples
  std::uint64_t restored_examples = 0;  ///< examples of this rank before the checkpoint it began with
  double loss = 0;                      ///< last reported loss
  double seconds = 0;                   ///< from the moment that the owner joined until now, or until it left
  std::string waiting_for;              ///< what the worker is blocked on, as text; empty: nothing
  StalenessSummary staleness;           ///< of its pushes
  std::optional<GpuUse> gpu;            ///< unset: it uses none
};

/// A variable, or one of the parts that it is partitioned into along its first axis.
struct PartInfo {
  std::uint32_t shard = 0;           ///< number of the shard that holds it
  int node = -1;                     ///< memory (NUMA) node that the shard's memory prefers; -1: none
  std::uint64_t first_row = 0;       ///< its first row, of the first axis
  std::uint64_t rows = 0;            ///< number of its rows
  std::uint64_t bytes = 0;           ///< size of the values alone, rounded up to whole floats
  std::uint64_t slot_bytes = 0;      ///< size of the optimizer slots
  std::uint64_t offset = 0;          ///< position of the buffers or elements in the shard's segment, in bytes
  std::uint64_t chunks = 0;          ///< number of chunks (versioned) or blocks (in-place)
  std::uint64_t chunk_elements = 0;  ///< elements per chunk or block; the last one may have fewer
};

/// A variable of the job.
struct VariableInfo {
  std::string name;                    ///< as it was declared
  DType dtype = DType::kFloat32;       ///< type of its elements
  std::vector<std::uint64_t> shape;    ///< extents; empty: a scalar
  UpdateRule rule = UpdateRule::kSgd;  ///< how a push changes it
  Layout layout = Layout::kVersioned;  ///< how it is stored
  float lr_scale = 1.0F;               ///< factor of the job's learning rate
  float regularize = 0.0F;             ///< factor of its l2, l1 and weight_decay
  std::uint64_t element_count = 0;     ///< product of the extents
  std::uint64_t bytes = 0;             ///< size of the values alone
  std::uint64_t updates = 0;           ///< average number of changes of a chunk or block; mode sync: of steps
  std::vector<std::string> slots;      ///< names of the optimizer slots
  std::size_t row_slots = 0;           ///< how many of `slots`, the last ones, belong to rows instead of elements
  std::vector<PartInfo> parts;         ///< at least one
  bool initialised = false;            ///< whether it has its initial values
};

/// A table by key.
struct TableInfo {
  TableSpec spec;               ///< as it was declared; max_rows is of all parts, which may round it up
  std::uint32_t parts = 1;      ///< segments that it is divided over
  std::uint64_t row_bytes = 0;  ///< size of a row, with its key, the floats and the optimizer's state beside them
  std::uint64_t buckets = 0;    ///< of its index, that are in use
  TableStatistics statistics;   ///< counted since it was made
};

/// What a look at the rows of a table finds. The numbers of rows are of those that were looked at.
struct TableCensus {
  std::uint64_t sampled = 0;     ///< rows, of those that have been in use
  std::uint64_t with_keys = 0;   ///< rows
  std::uint64_t sealed = 0;      ///< of these: rows that are to be evicted, if no push comes first
  std::uint64_t free = 0;        ///< rows that may get a key
  std::uint64_t being_made = 0;  ///< rows that are getting a key
  /// Rows that were evicted and are not free yet. Without living workers, these and those of `being_made` are left so;
  /// the next worker that makes rows puts that right.
  std::uint64_t dead = 0;
  std::uint64_t pinned = 0;         ///< rows that living workers are pushing, of the whole table
  double mean_chain = 0;            ///< rows behind a bucket of the index, on average
  std::uint64_t p99_chain = 0;      ///< 99th percentile of these rows
  std::uint64_t longest_chain = 0;  ///< the most of these rows
  /// Rows may have come and gone meanwhile: then `faults` has only what cannot come of that.
  bool has_living_workers = false;
  std::uint64_t skipped = 0;        ///< with living workers: buckets whose rows changed at each of many looks
  std::vector<std::string> faults;  ///< what is damaged, in sentences, the first ten; not looked for in a sample
  /// How much a key is used.
  struct Used {
    std::uint64_t key = 0;        ///< the key
    std::uint32_t frequency = 0;  ///< about how often it was pushed, on a scale that grows slower, up to 255
  };
  std::vector<Used> hottest;  ///< the ten keys that are pushed most often, if the table counts that (Evict::kLfu)
};

/// A ps task and its shard.
struct TaskInfo {
  bool is_alive = false;             ///< whether the process that serves it is alive
  std::uint32_t pid = 0;             ///< that process
  int node = -1;                     ///< memory (NUMA) node that the shard's memory prefers; -1: none
  bool huge_pages = false;           ///< whether huge pages are requested
  std::uint64_t file_bytes = 0;      ///< its file
  std::uint64_t used_bytes = 0;      ///< its part in use
  std::uint64_t reserved_bytes = 0;  ///< its address space
  std::uint64_t variables = 0;       ///< variables, or parts of variables, in the shard
};

/// What the bytes of a job in /dev/shm are used for.
struct ByteCount {
  std::uint64_t control = 0;       ///< control segment
  std::uint64_t values = 0;        ///< values of the variables
  std::uint64_t slots = 0;         ///< their optimizer slots
  std::uint64_t chunk_words = 0;   ///< chunk words and block counters
  std::uint64_t padding = 0;       ///< buffer headers, ends of buffers and pages, alignment, growth not used yet
  std::uint64_t free_buffers = 0;  ///< free buffers and their tables
  std::uint64_t accumulators = 0;  ///< reduce atomic: accumulators
  std::uint64_t reserves = 0;      ///< additional buffers that snapshots need, from the first snapshot on
  std::uint64_t gradients = 0;     ///< gradient segments
  std::uint64_t shared_data = 0;   ///< Worker::shared_data()
  std::uint64_t tables = 0;        ///< tables by key
  std::uint64_t bridge = 0;        ///< what a bridge to other boxes keeps
  /// The sum of these.
  std::uint64_t total() const noexcept {
    return control + values + slots + chunk_words + padding + free_buffers + accumulators + reserves + gradients +
           shared_data + tables + bridge;
  }
};

/// Something that happened in the job. The newest 256 events are kept, and besides them the newest 1024 step decisions.
struct Event {
  std::uint64_t unix_ns = 0;  ///< time in nanoseconds since 1970
  /// One of joined, left, died, initialised, set, short-quorum, ended, decided, left-out, adopted, unregistered.
  std::string kind;
  std::optional<std::uint32_t> rank;  ///< of the worker that it concerns, if any
  std::uint64_t step = 0;             ///< global step at that moment; decided: the step that was decided
  std::vector<std::uint32_t> ranks;   ///< decided: the contributors
  std::string text;                   ///< one line, diagnostic only
};

/// The state of a job as a whole.
struct JobInfo {
  JobConfig config;                   ///< the settings that it was created with
  LiveSettings live;                  ///< the runtime settings in force
  std::uint64_t live_version = 0;     ///< how often they have been changed
  std::vector<TaskInfo> tasks;        ///< its ps tasks, in their order
  ByteCount bytes;                    ///< what its memory is used for
  std::uint64_t global_step = 0;      ///< number of global steps done
  bool finished = false;              ///< the last step is done
  bool kept = false;                  ///< the segments stay when the job ends (Server::keep_segments())
  bool served = false;                ///< a ps task of the job is alive
  std::uint32_t ps_pid = 0;           ///< process of its first living ps task, or else of task 0
  std::uint32_t servers = 0;          ///< number of ps processes so far: the creator, and each that took the job over
  std::uint64_t instance = 0;         ///< random number that identifies this job among those of its name
  std::uint64_t created_unix_ns = 0;  ///< when it was created, in nanoseconds since 1970
  std::uint64_t snapshots = 0;        ///< number of snapshots asked for: the epoch of the last one
  double snapshot_age_seconds = 0;    ///< since the last one was asked for
  bool has_snapshot = false;          ///< some process is taking or holding a snapshot
  bool is_pausing_pushes = false;     ///< pushes are waiting for a snapshot that is being taken
  std::uint64_t guest_ticket = 0;     ///< the greatest ticket of a guest (Worker::add_once()); 0: there was none
};

/// An account of the versioned buffers. Each buffer must be named exactly once: by a chunk, by a snapshot image (or the
/// reserve) of a chunk, or by a free-buffer record.
struct BufferCount {
  std::uint64_t buffers = 0;  ///< number of buffers
  /// Free buffers that were in flight in a push that is under way or whose worker died; the rank's next owner recovers
  /// them.
  std::uint64_t in_doubt = 0;
  std::uint64_t lost = 0;    ///< named nowhere; while pushes are under way, some are between two names
  std::uint64_t shared = 0;  ///< named more than once: the segment is damaged
};

/// One bucket of the staleness histogram: `count` pushes (of chunks; in-place: of blocks) had a staleness of at least
/// `least`. Up to 63 it is exactly `least`; above, it is below twice `least`.
struct StalenessCount {
  std::uint64_t least = 0;  ///< smallest staleness of the bucket
  std::uint64_t count = 0;  ///< number of pushes
};

/// A handle for reading a job.
///
/// @throws Error with kDamaged from any function, if a segment of the job is damaged or has been cut off.
/// @progress no function waits for another process, except snapshot().
class JobView {
 public:
  /// Attaches to a job of any user whose segments this process may read.
  ///
  /// @throws Error with kNotFound if there is no such job, kUnavailable if it is still being created, kIncompatible if
  /// another layout version or build made it, kPermissionDenied, kDamaged; kInvalidArgument if the name is invalid.
  explicit JobView(const std::string& job);
  ~JobView();
  JobView(JobView&&) noexcept;
  JobView& operator=(JobView&&) = delete;

  /// As the constructor, but returns std::nullopt if the job does not exist or is still being created.
  ///
  /// @throws Error as the constructor otherwise.
  static std::optional<JobView> try_open(const std::string& job);

  /// The settings, tasks, memory, steps and snapshots.
  JobInfo info() const;

  /// The global step alone: cheap, for polling.
  std::uint64_t global_step() const;

  /// Each rank that has had an owner.
  std::vector<WorkerInfo> workers() const;

  /// The variables, in the order of their declaration.
  std::vector<VariableInfo> variables() const;

  /// The values of the variable `name` of float32 or bfloat16, as Worker::pull() copies them, in row-major order.
  ///
  /// @throws Error with kNotFound if there is no such variable (the message lists those that exist), kInvalidState if
  /// it is not initialised, kInvalidArgument if it is of another dtype.
  std::vector<float> values(const std::string& name) const;

  /// The values of the variable `name`, of any dtype, as bytes.
  ///
  /// @throws as values(), except for the dtype.
  std::vector<std::byte> bytes(const std::string& name) const;

  /// A sample of the values of the variable `name`, as bytes, for statistics of a large variable: whole chunks or
  /// blocks, spread evenly over the variable, with about `most` elements in all and at least one chunk or block.
  ///
  /// @pre most > 0.
  /// @throws as bytes().
  std::vector<std::byte> sample(const std::string& name, std::uint64_t most) const;

  /// The moving averages of the parameters of the variable `name`.
  ///
  /// @throws Error as values(), and if the variable has no moving average.
  std::vector<float> averages(const std::string& name) const;

  /// The optimizer slot of that name (VariableInfo::slots) of the variable `name`. It must be a slot of elements and
  /// not of rows.
  ///
  /// @throws Error as values(), and kNotFound, which lists those that there are, if there is no such slot.
  std::vector<float> slot(const std::string& name, const std::string& slot) const;

  /// The tables by key, in the order of their declaration.
  std::vector<TableInfo> tables() const;

  /// Counts the rows of a table by their states, and checks that each is where it belongs. Samples about `most` rows;
  /// misplaced rows are found only by a full scan (0). Holds up nobody.
  ///
  /// @throws Error with kNotFound if there is no such table (the message lists those that exist).
  TableCensus count_rows(const std::string& table, std::uint64_t most = 0) const;

  /// The rows of a table that have keys, without their state, in no particular order, at most `most` of them; 0: all.
  /// Each row is its key's throughout; rows are of different moments.
  ///
  /// @throws as count_rows().
  std::vector<TableRow> table_rows(const std::string& table, std::uint64_t most = 0) const;

  /// Takes a consistent snapshot of all variables while the workers go on, see Worker::snapshot(); also of a dead job.
  /// This is the only function here that writes to the job, for which it maps the segments once more. The job must be
  /// of this process's user, or of the users of the Unix group `group`. The JobView must outlive the Snapshot.
  ///
  /// @throws Error with kPermissionDenied if the job is another user's, kInvalidState if the name belongs to another
  /// job by now; and as Worker::snapshot().
  Snapshot snapshot(const SnapshotOptions& options = {}, const std::string& group = {}) const;

  /// Counts the versioned buffers. It reads each record once, so the account is exact only while nobody pushes.
  BufferCount buffers() const;

  /// The events, oldest first.
  std::vector<Event> events() const;

  /// The staleness of the pushes of all workers.
  StalenessSummary staleness() const;

  /// Its histogram: the buckets that are not empty, in ascending order.
  std::vector<StalenessCount> staleness_counts() const;

  /// A 64-bit hash (FNV-1a) of the names and values of all variables, in the order of their names.
  std::uint64_t digest() const;

 private:
  struct Impl;
  explicit JobView(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps_shm
