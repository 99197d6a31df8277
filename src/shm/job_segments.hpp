// A job's control segment and shards, mapped: typed references into them; how a job is created, attached and removed.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ps/job_config.hpp"
#include "shm/layout.hpp"
#include "shm/liveness.hpp"
#include "shm/segment.hpp"

namespace ps::shm {

// The text in a field of fixed size, which a zero ends or the field does.
template <std::size_t Size>
std::string_view text_of(const char (&field)[Size]) noexcept {
  return {field, strnlen(field, Size)};
}

// The size of the control segment of a job with so many ranks as long as it has no variables, and with so many records.
std::size_t control_bytes(std::uint32_t ranks, std::uint32_t records = 0) noexcept;

// How a new shard's memory is made.
struct ShardOptions {
  std::function<void(const std::string&)> warn;  // where the system refuses what was asked for
};

class JobSegments {
 public:
  // All attach only to what they trust: what the settings say, or the caller.

  // Creates the job (names.N1) with the byte of task 0 taken, and shard 0; reclaims what a dead job of that name has
  // left (names.N2). The job can be attached to once all its shards are there. Throws Error: served already, workers of
  // an orphaned job alive, no room.
  // `wait` is called before each further look while others remove a job of that name; it may throw. `fill` may change
  // what the control segment begins with, before anybody sees it.
  static JobSegments create(const JobConfig& config, const ShardOptions& options = {},
                            const std::function<void()>& wait = {}, const std::function<void(JobSegments&)>& fill = {});

  // The job with whatever shards are there already, for a ps task to add its own; nothing where there is no such job,
  // or not yet, as `outcome` says.
  static std::optional<JobSegments> try_attach_control(const std::string& job, AttachOutcome& outcome,
                                                       const Trust& trust = {});

  // Takes the byte of a ps task and makes its shard, or takes a dead task's over. False: the byte is held, or the job
  // is orphaned.
  // Throws Error: no room, or the shard is another job's. `check` is called when the byte is held, before anything is
  // made. Where either throws, the byte is given back (names.N9).
  [[nodiscard]] bool try_add_task(std::uint32_t task, const ShardOptions& options,
                                  const std::function<void(JobSegments&)>& check = {});

  // Whether the job is gone, or was being removed by somebody who died over it (names.N3). To be asked after taking a
  // byte and before naming anything. A removal begins with shard 0, and no job is published without it.
  bool is_orphaned() const { return control_.is_orphaned() || !shards_[0].is_mapped() || shards_[0].is_orphaned(); }

  // The same; throws Error where the byte is held.
  void add_task(std::uint32_t task, const ShardOptions& options);

  // Nothing where the job does not exist, is being created or removed, or misses a shard. Throws Error where it is
  // damaged or of another build.
  static std::optional<JobSegments> try_attach(const std::string& job, Access access, AttachOutcome& outcome,
                                               const Trust& trust = {});

  const Segment& control() const noexcept { return control_; }
  // Whose segments belong to the job: of a control segment that its group shares, all of that group's.
  const Trust& trust() const noexcept { return trust_; }
  TaskLocks locks() const noexcept { return TaskLocks(control_.descriptor()); }
  const std::string& job() const noexcept { return job_; }
  std::uint64_t instance() const noexcept { return control_.header().instance; }

  // Resolved; read from the segment once, so that what was checked stays as it was. Its group is not stored.
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
  // Whether the control segment's file covers the first `count` records. A record that the index names is covered.
  bool has_records(std::uint32_t count) const {
    return count <= kMaxVariables && control_bytes(ranks(), count) <= control_.usable_bytes();
  }
  // Makes that record's bytes exist (directory.D7). Lock-free. Throws Error when /dev/shm is full, nothing changed then.
  void make_record(std::uint32_t number);
  WorkerShm& worker(std::uint32_t rank) const noexcept { return (&at<WorkerShm>(kWorkersOffset))[rank]; }
  std::uint32_t ranks() const noexcept { return config().max_workers; }
  // Lanes of spare buffers: one for each rank and thread.
  std::uint32_t lanes() const noexcept { return config().max_workers * config().threads; }
  std::uint32_t lane(std::uint32_t rank, std::uint32_t thread) const noexcept {
    return rank * config().threads + thread;
  }

  // Whether the shard is there; maps one that has come since. Throws Error: it is another job's, or damaged.
  bool has_shard(std::uint32_t number) { return shards_[number].is_mapped() || try_map_shard(number); }
  Segment& shard(std::uint32_t number) noexcept { return shards_[number]; }
  const Segment& shard(std::uint32_t number) const noexcept { return shards_[number]; }
  std::byte* shard_data(std::uint32_t number) const noexcept { return shards_[number].data(); }
  SpareTableShm& spare_table(std::uint32_t shard, std::uint32_t lane) const noexcept {
    return reinterpret_cast<SpareTableShm*>(shard_data(shard) + kSparesOffset)[lane];
  }
  std::size_t shard_data_offset() const noexcept;  // where a shard's first variable may begin

  bool is_alive(std::uint32_t rank) const noexcept { return locks().is_held_by_other(kRankByte + rank); }

  // Whether the job's last step is done; and whether there is nothing more to do, also because its ps has ended it.
  // The round that a barrier began with; the job's workers are waited for in it.
  std::uint64_t first_round(std::uint32_t which) const noexcept { return which == 0 ? config().first_step : 0; }
  bool is_finished() const noexcept { return config().steps != 0 && steps_done() >= config().steps; }
  bool is_over() const noexcept { return is_finished() || was_ended(); }
  bool was_ended() const noexcept { return state().ended.load_acquire() != 0; }  // (names.N7)
  bool is_kept() const noexcept { return state().keep.load_acquire() != 0; }     // (names.N8)

 private:
  JobSegments() = default;
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
  std::vector<Segment> shards_;
};

// What removing found.
enum class RemoveOutcome { kRemoved, kAbsent, kAlive };

// Removes all segments of a job that nobody holds a lock of (names.N2): shards, gradient segments and shared data
// first, control last. `own`: a descriptor of the job through which the caller holds its locks, or -1. Never touches a
// live job. /dev/shm lets only owners remove names: what other users of the job's group have left is emptied, and named
// to `notice`. Throws Error where the control segment is another user's, or not trusted.
RemoveOutcome remove_job(const std::string& job, int own = -1,
                         const std::function<void(const std::string&)>& notice = {}, const Trust& trust = {});

// Removes the job if it was ended and shall not be kept, and nobody is left in it: for callers that have given a byte
// back (names.N9). What cannot be removed stays for the next ps of the name.
void remove_if_ended(const JobSegments& job) noexcept;

// The ps tasks and workers of others that are alive, for people: "worker 1 (process 12) has", "... and ... have", or
// nothing. Looks at every process.
std::string who_has(const JobSegments& job);

// Names the processes that keep a new job from the name, for people: "process 12 is removing it", "it was ended, and
// worker 1 (process 12) has not left it yet". Nothing where there are none, or the job is alive; of a job that is not
// trusted no worker is named. Looks at every process.
std::string who_keeps(const std::string& job, const Trust& trust);

}  // namespace ps::shm
