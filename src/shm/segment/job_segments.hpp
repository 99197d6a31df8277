// A job's mapped control segment and shards: typed references into them, and creating, attaching and removing a job.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ps_shm/job_config.hpp"
#include "shm/segment/layout.hpp"
#include "shm/segment/liveness.hpp"
#include "shm/segment/segment.hpp"
#include "update/hash.hpp"

namespace ps_shm::shm {

// The text in a field of fixed size, which ends at the first zero or at the end of the field.
template <std::size_t Size>
std::string_view text_of(const char (&field)[Size]) noexcept {
  return {field, strnlen(field, Size)};
}

// The size of the control segment of a job with `ranks` ranks, with room for `records` records.
std::size_t control_bytes(std::uint32_t ranks, std::uint32_t records = 0) noexcept;

// How the memory of a new shard is set up.
struct ShardOptions {
  std::function<void(const std::string&)> warn;  // called if the system refuses a request
};

class JobSegments {
 public:
  // All functions attach only to trusted segments: those that the settings or the caller's `trust` allow (names.N10).

  // Creates the job (names.N1): takes the byte of task 0 and makes shard 0. Reclaims what a dead job of that name has
  // left (names.N2). The job can be attached to once all its shards exist. Throws Error if the job is being served, if
  // workers of an orphaned job are alive, or if there is no space.
  // `wait` is called before each new attempt while another process removes a job of that name; it may throw. `fill`
  // may change the initial contents of the control segment, before any other process can see it.
  static JobSegments create(const JobConfig& config, const ShardOptions& options = {},
                            const std::function<void()>& wait = {}, const std::function<void(JobSegments&)>& fill = {});

  // The job with the shards that exist so far, so that a ps task can add its own. Returns nothing if there is no such
  // job, or not yet; see `outcome`.
  static std::optional<JobSegments> try_attach_control(const std::string& job, AttachOutcome& outcome,
                                                       const Trust& trust = {});

  // Takes the byte of a ps task and makes its shard, or takes a dead task over. Returns false if the byte is held or
  // the job is orphaned. Throws Error if there is no space, or if the shard belongs to another job. `check` is called
  // when the byte is held, before anything is made. If either throws, the byte is given back (names.N9).
  [[nodiscard]] bool try_add_task(std::uint32_t task, const ShardOptions& options,
                                  const std::function<void(JobSegments&)>& check = {});

  // Whether the job is gone, or its removal was interrupted by a death (names.N3). Check this after taking a byte and
  // before naming anything. A removal begins with shard 0, and no job is published without shard 0.
  bool is_orphaned() const { return control_.is_orphaned() || !shards_[0].is_mapped() || shards_[0].is_orphaned(); }

  // The same, but throws Error if the byte is held.
  void add_task(std::uint32_t task, const ShardOptions& options);

  // Returns nothing if the job does not exist, is being created or removed, or lacks a shard. Throws Error if it is
  // damaged or was made by another build.
  static std::optional<JobSegments> try_attach(const std::string& job, Access access, AttachOutcome& outcome,
                                               const Trust& trust = {});

  const Segment& control() const noexcept { return control_; }
  // Whose segments belong to the job. If a group shares the control segment, all segments of that group do.
  const Trust& trust() const noexcept { return trust_; }
  TaskLocks locks() const noexcept { return TaskLocks(control_.descriptor()); }
  // In a forked child, which has neither descriptors nor mappings of its parent's job (locks.L2).
  bool is_inherited() const noexcept { return control_.descriptor() < 0; }
  // Throws Error in a forked child. `what` names the object that it cannot use.
  void refuse_inherited(const char* what) const {
    if (is_inherited()) [[unlikely]]
      fail_inherited(what);
  }
  const std::string& job() const noexcept { return job_; }
  std::uint64_t instance() const noexcept { return control_.header().instance; }

  // Of its tables' keys, and of others that its users may have chosen. It is the same in all of its processes.
  const update::KeyHash& key_hash() const noexcept { return key_hash_; }

  // The resolved settings, read from the segment once, so that they stay as they were checked. The group is not
  // stored.
  const JobConfig& config() const noexcept { return config_; }
  JobStateShm& state() const noexcept { return at<JobStateShm>(kStateOffset); }
  BarrierShm& barrier(std::uint32_t which) const noexcept { return state().barriers[which]; }
  AtomicShm<std::uint64_t>& global_step() const noexcept { return barrier(0).step; }
  std::uint64_t steps_done() const noexcept {
    return global_step().load_acquire();  // (steps.T2) pairs with steps.T1, barrier.A6
  }
  AtomicShm<std::uint32_t>& index(std::uint32_t position) const noexcept {
    return (&at<AtomicShm<std::uint32_t>>(kIndexOffset))[position];
  }
  SettingsShm& settings() const noexcept { return at<SettingsShm>(kSettingsOffset); }
  EventShm& event(std::uint32_t number) const noexcept { return (&at<EventShm>(kEventsOffset))[number]; }
  // Requires: has_records(number + 1).
  VariableShm& record(std::uint32_t number) const noexcept {
    return (&at<VariableShm>(control_bytes(ranks())))[number];
  }
  // Whether the control segment's file covers the first `count` records. It covers every record that the index names.
  bool has_records(std::uint32_t count) const {
    return count <= kMaxVariables && control_bytes(ranks(), count) <= control_.usable_bytes();
  }
  // Makes that record's bytes exist (directory.D7). Lock-free. Throws Error if /dev/shm is full; nothing has changed
  // then.
  void make_record(std::uint32_t number);
  WorkerShm& worker(std::uint32_t rank) const noexcept { return (&at<WorkerShm>(kWorkersOffset))[rank]; }
  std::uint32_t ranks() const noexcept { return config().max_workers; }
  // Lanes: lists of free buffers, one for each rank and thread.
  std::uint32_t lanes() const noexcept { return config().max_workers * config().threads; }
  std::uint32_t lane(std::uint32_t rank, std::uint32_t thread) const noexcept {
    return rank * config().threads + thread;
  }

  // Whether the shard exists; maps it if it has appeared since. Throws Error if it is damaged or belongs to another
  // job.
  bool has_shard(std::uint32_t number) { return shards_[number].is_mapped() || try_map_shard(number); }
  Segment& shard(std::uint32_t number) noexcept { return shards_[number]; }
  const Segment& shard(std::uint32_t number) const noexcept { return shards_[number]; }
  std::byte* shard_data(std::uint32_t number) const noexcept { return shards_[number].data(); }
  FreeBufferTableShm& free_buffer_table(std::uint32_t shard, std::uint32_t lane) const noexcept {
    return reinterpret_cast<FreeBufferTableShm*>(shard_data(shard) + kFreeBuffersOffset)[lane];
  }
  std::size_t shard_data_offset() const noexcept;  // where a shard's first variable may begin

  // The names of the job's tables that this process has seen, from number 0 on. They never change.
  std::vector<std::string>& tables_seen() noexcept { return tables_seen_; }

  bool is_alive(std::uint32_t rank) const noexcept { return locks().is_held_by_other(kRankByte + rank); }

  // first_round: the round that a barrier begins with, which waits for all of the job's workers. is_finished: whether
  // the last step is done. is_over: whether there is nothing more to do, because the last step is done or the ps has
  // ended the job.
  std::uint64_t first_round(std::uint32_t which) const noexcept { return which == 0 ? config().first_step : 0; }
  bool is_finished() const noexcept { return config().steps != 0 && steps_done() >= config().steps; }
  bool is_over() const noexcept { return is_finished() || was_ended(); }
  bool was_ended() const noexcept { return state().ended.load_acquire() != 0; }  // (names.N7)
  bool is_kept() const noexcept { return state().keep.load_acquire() != 0; }     // (names.N8)

 private:
  JobSegments() = default;
  [[noreturn]] void fail_inherited(const char* what) const;
  template <class T>
  T& at(std::size_t offset) const noexcept {
    return *reinterpret_cast<T*>(control_.data() + offset);
  }

  static std::optional<JobSegments> try_attach_some(const std::string& job, Access access, AttachOutcome& outcome,
                                                    const Trust& trust);
  void create_shard(std::uint32_t number, const ShardOptions& options);
  bool try_map_shard(std::uint32_t number);

  std::string job_;
  Access access_ = Access::kReadWrite;
  Segment control_;
  Trust trust_;
  JobConfig config_;
  update::KeyHash key_hash_;
  std::vector<Segment> shards_;
  std::vector<std::string> tables_seen_;
};

// The result of a removal.
enum class RemoveOutcome { kRemoved, kAbsent, kAlive };

// Removes all segments of a job if no process holds a lock of it (names.N2): shards, gradient segments and shared data
// first, the control segment last. Never touches a live job. `own`: a descriptor of the job through which the caller
// holds its locks, or -1. /dev/shm lets only owners remove names. Segments left by other users of the job's group are
// therefore emptied, and reported to `log`. Throws Error if the control segment belongs to another user or is not
// trusted.
RemoveOutcome remove_job(const std::string& job, int own = -1, const std::function<void(const std::string&)>& log = {},
                         const Trust& trust = {});

// Removes the job if it was ended, is not to be kept, and no process is left in it. For callers that have given a byte
// back (names.N9). What cannot be removed is left to the next ps of the name.
void remove_if_ended(const JobSegments& job) noexcept;

// Names the live ps tasks and workers of other processes, for messages: "worker 1 (process 12) has" or "... and ...
// have". Empty if there are none. Scans all processes.
std::string who_has(const JobSegments& job);

// Names the processes that keep a new job from using the name, for messages: "process 12 is removing it", "it was
// ended, and worker 1 (process 12) has not left it yet". Empty if there are none, or if the job is alive. Names no
// worker of a job that is not trusted. Scans all processes.
std::string who_keeps(const std::string& job, const Trust& trust);

}  // namespace ps_shm::shm
