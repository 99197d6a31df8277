// A read-only view of a job, live or dead: its settings, variables' values, workers and counters. Writes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ps/export.hpp"
#include "ps/job_config.hpp"
#include "ps/snapshot.hpp"
#include "ps/types.hpp"

namespace PS_API ps {

struct WorkerInfo {
  std::uint32_t rank = 0;
  WorkerState state = WorkerState::kNever;
  std::uint32_t pid = 0;
  std::uint64_t holders = 0;                         // how many processes have had this rank so far
  std::uint64_t steps = 0, pushes = 0, pulls = 0;    // pushes and pulls of variables
  std::uint64_t push_retries = 0, pull_retries = 0;  // of chunks
  std::uint64_t dropped = 0;                         // sync: gradients that came too late for their step
  std::uint64_t clock = 0;                           // ssp: steps done since the mode began
  std::uint64_t lead_max = 0;                        // ssp: most steps ahead of the slowest when a step began
  std::uint64_t examples = 0, step_examples = 0;     // in this job, and of a step lately
  std::uint64_t examples_offset = 0;                 // sync: at global step s they were this + s * step_examples
  std::uint64_t restored_examples = 0;               // of this rank before the checkpoint that the job began with
  double loss = 0;
  double seconds = 0;       // from joining to now, or to leaving
  std::string waiting_for;  // empty: for nothing
  StalenessSummary staleness;
};

// A variable, or one of the parts it is partitioned into along its first axis.
struct PartInfo {
  std::uint32_t shard = 0;
  int node = -1;                          // memory node that the shard is bound to; -1: none
  std::uint64_t first_row = 0, rows = 0;  // of the first axis
  std::uint64_t bytes = 0;                // of the values alone, in whole floats
  std::uint64_t slot_bytes = 0;           // of optimizer slots
  std::uint64_t offset = 0;               // in the shard's segment: where its buffers or elements begin
  std::uint64_t pieces = 0;               // chunks or blocks
  std::uint64_t piece_elements = 0;
};

struct VariableInfo {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::uint64_t> shape;
  UpdateRule rule = UpdateRule::kSgd;
  Layout layout = Layout::kVersioned;
  std::uint64_t element_count = 0;
  std::uint64_t bytes = 0;         // of the values alone
  std::uint64_t updates = 0;       // pushes counted over all pieces, divided by their number
  std::vector<std::string> slots;  // the optimizer slots' names
  std::size_t row_slots = 0;       // how many of `slots`, the last ones, are of rows and not of elements
  std::vector<PartInfo> parts;     // at least one
  bool initialised = false;
};

// A ps task and its shard.
struct TaskInfo {
  bool is_alive = false;
  std::uint32_t pid = 0;
  int node = -1;  // that the shard's memory is bound to; -1: none
  bool huge_pages = false;
  std::uint64_t file_bytes = 0, used_bytes = 0, reserved_bytes = 0;
  std::uint64_t variables = 0;  // or parts of some
};

// Where a job's bytes are.
struct ByteCount {
  std::uint64_t control = 0;
  std::uint64_t values = 0, slots = 0;  // of the variables
  std::uint64_t words = 0;              // chunk words, block counters
  std::uint64_t padding = 0;            // buffer headers, ends of buffers and pages, alignment, unused growth
  std::uint64_t spares = 0;             // spare buffers and the tables of them
  std::uint64_t accumulators = 0;       // reduce atomic
  std::uint64_t reserves = 0;           // what snapshots need, from the first one on
  std::uint64_t gradients = 0;          // gradient segments
  std::uint64_t shared_data = 0;        // what workers share read-only
  std::uint64_t total() const noexcept {
    return control + values + slots + words + padding + spares + accumulators + reserves + gradients + shared_data;
  }
};

// Something that happened; the newest 256 are kept, and beside them the newest 1024 decisions of steps.
struct Event {
  std::uint64_t unix_ns = 0;
  std::string kind;  // joined, left, died, initialised, set, short-quorum, ended, decided, left-out, adopted,
                     // unregistered
  std::optional<std::uint32_t> rank;
  std::uint64_t step = 0;            // global step at that moment; decided: the step itself
  std::vector<std::uint32_t> ranks;  // decided: the contributors
  std::string text;                  // one line for people
};

struct JobInfo {
  JobConfig config;
  LiveSettings live;
  std::uint64_t live_version = 0;  // how often they have been changed
  std::vector<TaskInfo> tasks;
  ByteCount bytes;
  std::uint64_t global_step = 0;
  bool finished = false;
  bool kept = false;    // its segments are to stay when it ends (keep_segments)
  bool served = false;  // a live ps task has it
  std::uint32_t ps_pid = 0;
  std::uint32_t servers = 0;  // how many ps have served the job: its creator, and each that took it over
  std::uint64_t instance = 0;
  std::uint64_t created_unix_ns = 0;
  std::uint64_t snapshots = 0;  // how many were asked for: the epoch of the last one
  double snapshot_age_seconds = 0;
  bool has_snapshot = false;  // somebody takes one, or has it
  bool is_cutting = false;    // pushes wait for it
};

// Which word has which versioned buffer: each belongs to one chunk word or to one spare record.
struct BufferCount {
  std::uint64_t buffers = 0;
  std::uint64_t in_doubt =
      0;                     // spares that a push under way, or a dead one, had in flight; the next holder settles them
  std::uint64_t lost = 0;    // that nobody names; while pushes are under way some are between two names
  std::uint64_t shared = 0;  // that two name: damage
};

// So many pushes (of chunks, in-place of blocks) had a staleness from `least` on: up to 63 of just that, above up to
// twice as much.
struct StalenessCount {
  std::uint64_t least = 0, count = 0;
};

class JobView {
 public:
  // Throws Error naming the outcome: no such job, still being created, of another layout version or build, damaged.
  explicit JobView(const std::string& job);
  ~JobView();
  JobView(JobView&&) noexcept;
  JobView& operator=(JobView&&) = delete;

  // The same, or nothing where the job does not exist yet or is still being created.
  static std::optional<JobView> try_open(const std::string& job);

  JobInfo info() const;
  std::uint64_t global_step() const;        // the same as info's, for who looks often
  std::vector<WorkerInfo> workers() const;  // of every rank that somebody has had
  std::vector<VariableInfo> variables() const;

  // Values of an initialised variable, as Worker::pull gives them. Throws Error: unknown (lists those there are),
  // not initialised, of another dtype than float32.
  std::vector<float> values(const std::string& name) const;

  // The same as bytes, of a variable of any dtype.
  std::vector<std::byte> bytes(const std::string& name) const;

  // A part of them: whole chunks or blocks that lie evenly over the variable, about `most` elements and one piece at least,
  // for who wants statistics of a large one. Requires: most > 0. Throws Error as bytes() does.
  std::vector<std::byte> sample(const std::string& name, std::uint64_t most) const;

  // The same for its moving average. Throws Error where it has none.
  std::vector<float> averages(const std::string& name) const;

  // The same for one of VariableInfo::slots, by its position; not for the state of rows. Throws Error where it has none.
  std::vector<float> slot(const std::string& name, std::uint64_t position) const;

  // One consistent state of all variables, while the workers go on (ps/snapshot.hpp), as Worker::snapshot(); also of a
  // dead job. The only function here that writes to the job: it maps the segments once more for that. The view outlives
  // the snapshot. The job is of this process's user, or of the users of `group`.
  // Throws Error: another user's, another job of that name by now, or as Worker::snapshot() does.
  Snapshot snapshot(const SnapshotOptions& options = {}, const std::string& group = {}) const;

  // Looks at each once: exact where nobody pushes.
  BufferCount buffers() const;

  // What has happened, oldest first.
  std::vector<Event> events() const;

  // Over all workers together.
  StalenessSummary staleness() const;

  // The same in full: what has been counted at all, in ascending order.
  std::vector<StalenessCount> staleness_counts() const;

  // A 64-bit hash (FNV-1a) over name and values of all variables in the order of their names.
  std::uint64_t digest() const;

 private:
  struct Impl;
  explicit JobView(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps
