#include "shm/job_segments.hpp"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>

#include "ps/errors.hpp"
#include "shm/futex.hpp"

namespace ps::shm {
namespace {

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::size_t control_bytes(std::uint32_t ranks) { return round_up(kWorkersOffset + ranks * sizeof(WorkerShm), kPage); }

std::uint64_t new_instance() {
  std::uint64_t instance = 0;
  if (getrandom(&instance, sizeof instance, GRND_NONBLOCK) != sizeof instance)
    instance = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()) ^
               (static_cast<std::uint64_t>(getpid()) << 40);
  return instance | 1;  // never 0
}

void write_config(JobConfigShm& out, const JobConfig& in, std::uint32_t ranks) {
  out.workers = in.workers;
  out.max_workers = ranks;
  out.shards = 1;
  out.mode = static_cast<std::uint32_t>(in.mode);
  out.layout = static_cast<std::uint32_t>(in.layout);
  out.adds = static_cast<std::uint32_t>(in.adds);
  out.schedule_kind = static_cast<std::uint32_t>(in.schedule.kind);
  out.schedule_decay = in.schedule.decay;
  out.schedule_decay_steps = in.schedule.decay_steps;
  out.learning_rate = in.learning_rate;
  out.l2 = in.l2;
  out.steps = in.steps;
  out.seed = in.seed;
  out.linger_seconds = in.linger_seconds;
  out.step_timeout_seconds = in.step_timeout_seconds;
}

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

// Whether `name` is a shard or gradient segment of the job; its control segment is not one.
bool is_part_of(const std::string& job, const std::string& name) {
  const std::string prefix = control_name(job) + ".";
  if (name.compare(0, prefix.size(), prefix) != 0) return false;
  const std::string rest = name.substr(prefix.size());
  if (is_number(rest)) return true;
  const auto dot = rest.find('.');
  return rest.size() > 3 && rest[0] == 'w' && dot != std::string::npos && is_number(rest.substr(1, dot - 1)) &&
         is_number(rest.substr(dot + 1));
}

void unlink_parts(const std::string& job) {
  for (const std::string& name : list_segments(control_name(job) + "."))
    if (is_part_of(job, name)) unlink_segment(name);
}

std::string who_is_alive(const std::string& job, const Segment& control) {
  // Of another version or damaged: nothing in it can be read, but its locks can.
  return TaskLocks(control.descriptor()).is_held_by_other(kTaskByte)
             ? fmt::format("job '{}' already has a ps; choose another --job name, or end that ps first", job)
             : fmt::format(
                   "job '{}' has no ps but workers that are still alive; end them first (inspect_shm workers --job {})",
                   job, job);
}

}  // namespace

RemoveOutcome remove_job(const std::string& job, int own) {
  const std::string name = control_name(job);
  Segment control;
  int descriptor = own;
  if (own < 0) {
    const AttachOutcome outcome = control.open(name, Access::kReadWrite);
    if (outcome == AttachOutcome::kAbsent) return RemoveOutcome::kAbsent;
    if (outcome == AttachOutcome::kNoPermission || control.descriptor() < 0) throw Error(describe(outcome, name));
    descriptor = control.descriptor();
  }
  const TaskLocks locks(descriptor);
  if (!locks.try_take_all()) return RemoveOutcome::kAlive;  // N2: the whole range, so no ps, worker or joiner has it
  RemoveOutcome removed = RemoveOutcome::kAbsent;
  if (leads_to(name, descriptor)) {  // N2: and the name still leads to it
    unlink_parts(job);
    unlink_segment(name);
    removed = RemoveOutcome::kRemoved;
  }
  locks.release_all();  // whoever takes a byte now finds st_nlink 0 (N3)
  return removed;
}

JobSegments JobSegments::create(const JobConfig& config) {
  const std::uint32_t ranks = config.max_workers != 0
                                  ? config.max_workers
                                  : std::min(kMaxRanks, std::max<std::uint32_t>(16, 2 * config.workers));
  JobSegments job;
  job.job_ = config.job;
  const std::size_t bytes = control_bytes(ranks);
  const std::uint64_t instance = new_instance();
  job.control_ = Segment::create(SegmentKind::kControl, 0, config.job, instance, bytes, bytes);
  write_config(*reinterpret_cast<JobConfigShm*>(job.control_.data() + kConfigOffset), config, ranks);
  job.state().ps_pid.store_relaxed(static_cast<std::uint32_t>(getpid()));
  if (!job.locks().try_take(kTaskByte))
    throw Error("cannot lock a new segment: does /dev/shm's file system have OFD locks?");
  const std::string name = control_name(config.job);
  NameWatch names;
  while (!job.control_.link(name)) {  // N1: named only now, filled and owned
    Segment other;
    const AttachOutcome outcome = other.open(name, Access::kReadWrite);
    if (outcome == AttachOutcome::kAbsent) continue;  // its owner removed it meanwhile
    if (outcome == AttachOutcome::kNoPermission || other.descriptor() < 0) throw Error(describe(outcome, name));
    if (TaskLocks(other.descriptor()).is_being_removed()) {
      names.wait(kWaitSliceMs);
      continue;
    }
    if (TaskLocks(other.descriptor()).is_any_held_by_other()) throw Error(who_is_alive(config.job, other));
    if (remove_job(config.job) == RemoveOutcome::kAlive) names.wait(kWaitSliceMs);  // somebody was faster: look again
  }
  try {
    unlink_parts(config.job);  // of a job that died while it was being removed; the name, and so they, are ours now
    job.shards_.push_back(Segment::create(SegmentKind::kShard, 0, config.job, instance,
                                          round_up(kSparesOffset + ranks * sizeof(SpareTableShm), kPage),
                                          shm_capacity_bytes()));
    if (!job.shards_[0].link(shard_name(config.job, 0)))
      throw Error("cannot name /dev/shm/" + shard_name(config.job, 0) +
                  ": something else has taken the name; remove it");
    job.shards_[0].publish();
  } catch (...) {
    remove_job(config.job, job.control_.descriptor());
    throw;
  }
  job.control_.publish();
  return job;
}

std::optional<JobSegments> JobSegments::try_attach(const std::string& job, Access access, AttachOutcome& outcome) {
  JobSegments attached;
  attached.job_ = job;
  outcome = attached.control_.open(control_name(job), access);
  if (outcome == AttachOutcome::kAbsent || outcome == AttachOutcome::kBeingCreated) return std::nullopt;
  if (outcome != AttachOutcome::kReady) throw Error(describe(outcome, control_name(job)));
  const HeaderShm& header = attached.control_.header();
  const JobConfigShm& config = attached.config();
  if (header.kind != static_cast<std::uint32_t>(SegmentKind::kControl) || header.initial_bytes < kWorkersOffset ||
      config.max_workers > kMaxRanks || header.initial_bytes < control_bytes(config.max_workers) ||
      config.shards == 0 || config.shards > kMaxShards)
    throw Error(describe(AttachOutcome::kDamaged, control_name(job)));
  for (std::uint32_t number = 0; number < config.shards; ++number) {
    Segment shard;
    const AttachOutcome found = shard.open(shard_name(job, number), access);
    const bool ours = found == AttachOutcome::kReady && shard.header().instance == attached.instance();  // N4
    if (found == AttachOutcome::kAbsent || (found == AttachOutcome::kReady && !ours)) {
      outcome = AttachOutcome::kAbsent;  // the job is being removed, or is another one by now
      return std::nullopt;
    }
    if (found != AttachOutcome::kReady) throw Error(describe(found, shard_name(job, number)));
    if (shard.header().kind != static_cast<std::uint32_t>(SegmentKind::kShard) ||
        shard.header().initial_bytes < attached.shard_data_offset())
      throw Error(describe(AttachOutcome::kDamaged, shard_name(job, number)));
    attached.shards_.push_back(std::move(shard));
  }
  return attached;
}

std::size_t JobSegments::shard_data_offset() const noexcept {
  return round_up(kSparesOffset + ranks() * sizeof(SpareTableShm), kPage);
}

JobConfig JobSegments::settings() const {
  const JobConfigShm& in = config();
  JobConfig out;
  out.job = job_;
  out.workers = in.workers;
  out.max_workers = in.max_workers;
  out.mode = static_cast<Mode>(in.mode);
  out.layout = static_cast<Layout>(in.layout);
  out.adds = static_cast<Adds>(in.adds);
  out.steps = in.steps;
  out.learning_rate = in.learning_rate;
  out.schedule = {static_cast<Schedule::Kind>(in.schedule_kind), in.schedule_decay, in.schedule_decay_steps};
  out.l2 = in.l2;
  out.seed = in.seed;
  out.linger_seconds = in.linger_seconds;
  out.step_timeout_seconds = in.step_timeout_seconds;
  return out;
}

}  // namespace ps::shm
