// A job's control segment and shards, mapped: typed references into them, and how a job is created, attached and removed.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
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

// Of the control segment of a job with so many ranks.
std::size_t control_bytes(std::uint32_t ranks) noexcept;

// How a new shard's memory is made.
struct ShardOptions {
  std::function<void(const std::string&)> warn;  // where the system refuses what was asked for
};

class JobSegments {
 public:
  // Creates the job (N1) with the byte of task 0 taken, and shard 0; reclaims what a dead job of that name has left (N2).
  // The job can be attached to once all its shards are there. Throws Error: served already, workers of an orphaned job
  // alive, no room.
  static JobSegments create(const JobConfig& config, const ShardOptions& options = {});

  // The job with whatever shards are there already, for a ps task to add its own; nothing where there is no such job,
  // or not yet, as `outcome` says.
  static std::optional<JobSegments> try_attach_control(const std::string& job, AttachOutcome& outcome);

  // Takes the byte of a ps task and makes its shard, or takes a dead task's over. False: the byte is held, or the job is
  // orphaned.
  // Throws Error: no room, or the shard is another job's. `check` is called when the byte is held, before anything is
  // made.
  [[nodiscard]] bool try_add_task(std::uint32_t task, const ShardOptions& options,
                                  const std::function<void(JobSegments&)>& check = {});

  // Whether the job is gone, or was being removed by somebody who died over it (N3). To be asked after taking a byte and
  // before naming anything. A removal begins with shard 0, and no job is published without it.
  bool is_orphaned() const { return control_.is_orphaned() || !shards_[0].is_mapped() || shards_[0].is_orphaned(); }

  // The same; throws Error where the byte is held.
  void add_task(std::uint32_t task, const ShardOptions& options);

  // Nothing where the job does not exist, is being created or removed, or misses a shard. Throws Error where it is
  // damaged or of another build.
  static std::optional<JobSegments> try_attach(const std::string& job, Access access, AttachOutcome& outcome);

  const Segment& control() const noexcept { return control_; }
  TaskLocks locks() const noexcept { return TaskLocks(control_.descriptor()); }
  const std::string& job() const noexcept { return job_; }
  std::uint64_t instance() const noexcept { return control_.header().instance; }

  // Who attaches has a copy, so that what was checked stays as it was.
  const JobConfigShm& config() const noexcept { return config_ ? *config_ : at<JobConfigShm>(kConfigOffset); }
  JobStateShm& state() const noexcept { return at<JobStateShm>(kStateOffset); }
  BarrierShm& barrier(std::uint32_t which) const noexcept { return state().barriers[which]; }
  AtomicShm<std::uint64_t>& global_step() const noexcept { return barrier(0).step; }
  AtomicShm<std::uint32_t>& index(std::uint32_t position) const noexcept {
    return (&at<AtomicShm<std::uint32_t>>(kIndexOffset))[position];
  }
  PlaceShm& place(std::uint32_t number) const noexcept { return (&at<PlaceShm>(kPlacesOffset))[number]; }
  EventShm& event(std::uint32_t number) const noexcept { return (&at<EventShm>(kEventsOffset))[number]; }
  VariableShm& record(std::uint32_t number) const noexcept { return (&at<VariableShm>(kVariablesOffset))[number]; }
  WorkerShm& worker(std::uint32_t rank) const noexcept { return (&at<WorkerShm>(kWorkersOffset))[rank]; }
  std::uint32_t ranks() const noexcept { return config().max_workers; }
  // Lanes of spare buffers: one for each rank and thread.
  std::uint32_t lanes() const noexcept { return config().max_workers * config().threads; }
  std::uint32_t lane(std::uint32_t rank, std::uint32_t thread) const noexcept {
    return rank * config().threads + thread;
  }

  Segment& shard(std::uint32_t number) noexcept { return shards_[number]; }
  const Segment& shard(std::uint32_t number) const noexcept { return shards_[number]; }
  std::byte* shard_data(std::uint32_t number) const noexcept { return shards_[number].data(); }
  SpareTableShm& spare_table(std::uint32_t shard, std::uint32_t lane) const noexcept {
    return reinterpret_cast<SpareTableShm*>(shard_data(shard) + kSparesOffset)[lane];
  }
  std::size_t shard_data_offset() const noexcept;  // where a shard's first variable may begin

  bool is_alive(std::uint32_t rank) const noexcept { return locks().is_held_by_other(kRankByte + rank); }

  // Whether the job's last step is done; and whether there is nothing more to do, also because its ps was told to end.
  bool is_finished() const noexcept {
    return config().steps != 0 && global_step().load_acquire() >= config().steps;  // pairs with the step's publication
  }
  bool is_over() const noexcept { return is_finished() || state().ended.load_acquire() != 0; }

  JobConfig settings() const;

 private:
  JobSegments() = default;
  template <class T>
  T& at(std::size_t offset) const noexcept {
    return *reinterpret_cast<T*>(control_.data() + offset);
  }

  static std::optional<JobSegments> try_attach_some(const std::string& job, Access access, AttachOutcome& outcome);
  void create_shard(std::uint32_t number, const ShardOptions& options);
  bool try_map_shard(std::uint32_t number, Access access);

  std::string job_;
  Segment control_;
  std::unique_ptr<const JobConfigShm> config_;
  std::vector<Segment> shards_;
};

// The job's Optimizer, resolved.
Optimizer optimizer_of(const JobConfigShm& config) noexcept;

// What removing found.
enum class RemoveOutcome { kRemoved, kAbsent, kAlive };

// Removes all segments of a job that nobody holds a lock of (N2): shards, gradient segments and shared data first, control last.
// `own`: a descriptor of the job through which the caller holds its locks, or -1. Never touches a live job.
// /dev/shm lets only owners remove names: what other users of the job's group have left is emptied, and named to
// `notice`. Throws Error where the control segment is another user's.
RemoveOutcome remove_job(const std::string& job, int own = -1,
                         const std::function<void(const std::string&)>& notice = {});

}  // namespace ps::shm
