#include "shm/segment/job_segments.hpp"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>

#include "config/job_settings.hpp"
#include "config/modes.hpp"
#include "ps_shm/errors.hpp"
#include "shm/base/futex.hpp"
#include "shm/segment/attach_outcome.hpp"
#include "shm/segment/live_record.hpp"
#include "shm/segment/memory_policy.hpp"

namespace ps_shm::shm {
namespace {

std::uint64_t random_word() {
  std::uint64_t word = 0;
  if (getrandom(&word, sizeof word, GRND_NONBLOCK) != sizeof word)  // early while the machine boots
    word = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()) ^
           (static_cast<std::uint64_t>(getpid()) << 40);
  return word;
}

// A job with a seed is reproducible: the seed decides where its tables' rows are, too.
update::KeyHash new_key_hash(const JobConfig& config) {
  if (config.seed) return update::KeyHash::of_seed(*config.seed);
  const std::uint64_t one = random_word();
  return update::KeyHash::of(one, random_word());
}

void write_settings(SettingsShm& out, const JobConfig& config) {
  const std::string text = config::encode(config);
  if (text.size() > sizeof out.text)
    throw Error(fmt::format("the settings of job '{}' take {} bytes; the maximum is {}", config.job, text.size(),
                            sizeof out.text),
                ErrorCode::kExhausted);
  text.copy(out.text, text.size());
  out.bytes = static_cast<std::uint32_t>(text.size());
}

// Throws Error if the bytes are no valid settings.
JobConfig read_settings(const SettingsShm& in, const std::string& job) {
  const std::uint32_t bytes = read_once(in.bytes);
  if (bytes > sizeof in.text) throw Error("they are longer than the segment allows", ErrorCode::kExhausted);
  JobConfig config = config::decode(std::string(in.text, bytes));
  config.job = job;
  return config;
}

// The memory node on which a shard's pages are to be placed, if any.
std::optional<std::uint32_t> node_of(const JobConfig& config, std::uint32_t shard) {
  switch (config.numa) {
    case Numa::kAuto:
      if (const auto nodes = memory_nodes(); nodes.size() > 1) return nodes[shard % nodes.size()];
      return std::nullopt;
    case Numa::kNodes:
      return config.numa_nodes[shard % config.numa_nodes.size()];
    case Numa::kNone:
      break;
  }
  return std::nullopt;
}

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

// Whether `name` is a segment of the job other than the control segment.
bool is_part_of(const std::string& job, const std::string& name) {
  const std::string prefix = control_name(job) + ".";
  if (name.compare(0, prefix.size(), prefix) != 0) return false;
  const std::string rest = name.substr(prefix.size());
  if (is_number(rest) || name == data_name(job) || name == bridge_name(job)) return true;
  const auto dot = rest.find('.');
  return rest.size() > 3 && (rest[0] == 'w' || rest[0] == 't') && dot != std::string::npos &&
         is_number(rest.substr(1, dot - 1)) && is_number(rest.substr(dot + 1));
}

// Returns the names that stay because they belong to other users.
std::vector<std::string> unlink_parts(const std::string& job) {
  std::vector<std::string> left;
  for (const std::string& name : list_segments(control_name(job) + ".")) {
    if (!is_part_of(job, name)) continue;
    if (!unlink_segment(name)) left.push_back(name);
    fault_point(FaultPoint::kRemovePart);
  }
  return left;
}

std::string who_is_alive(const std::string& job, const Segment& control) {
  // The segment may have another version or be damaged: its contents cannot be read, but its locks can.
  return TaskLocks(control.descriptor()).is_any_task_held_by_other()
             ? fmt::format("job '{}' already has a ps; choose another `job` name, or end that ps first", job)
             : fmt::format("job '{}' has live workers but no ps; try again to take it over", job);
}

// Checks the control segment's header and the settings that never change. Throws Error (kDamaged). Requires: the
// segment is mapped and was made by this build.
void check_settings(const JobSegments& job) {
  const auto require = [&](bool good, const char* what) {
    if (!good) fail_damaged(control_name(job.job()), what);
  };
  const JobConfig& config = job.config();
  const HeaderShm& header = job.control().header();
  require(job.control().is_of(SegmentKind::kControl, 0, job.job(), header.instance) && header.instance != 0,
          "it is not the control segment of that job");
  require(config.max_workers >= 1 && config.max_workers <= kMaxRanks &&
              header.initial_bytes == control_bytes(config.max_workers) &&
              job.control().mapped_bytes() == control_bytes(config.max_workers, kMaxVariables),
          "its size does not match its worker table and records");
  require(config == config::resolved(config), "its settings are incomplete");
  require(job.key_hash().is_bijection(), "two keys of its tables could have one hash");
  try {
    check(config);
  } catch (const Error& error) {
    fail_damaged(control_name(job.job()), fmt::format("its settings are impossible ({})", error.what()));
  }
}

}  // namespace

std::size_t control_bytes(std::uint32_t ranks, std::uint32_t records) noexcept {
  return round_up(kWorkersOffset + ranks * sizeof(WorkerShm), kPage) + records * sizeof(VariableShm);
}

void JobSegments::fail_inherited(const char* what) const {
  throw Error(fmt::format("job '{}': a forked child cannot use its parent's {}", job_, what), ErrorCode::kInvalidState);
}

void JobSegments::make_record(std::uint32_t number) {
  control_.grow(control_bytes(ranks(), (number / kRecordsAtOnce + 1) * kRecordsAtOnce));
}

RemoveOutcome remove_job(const std::string& job, int own, const std::function<void(const std::string&)>& log,
                         const Trust& trust) {
  const std::string name = control_name(job);
  Segment control;
  int descriptor = own;
  if (own < 0) {
    const AttachOutcome outcome = control.open(name, Access::kReadWrite, trust);
    if (outcome == AttachOutcome::kAbsent) return RemoveOutcome::kAbsent;
    if (outcome == AttachOutcome::kNoPermission || control.descriptor() < 0) throw attach_error(outcome, name);
    descriptor = control.descriptor();
  }
  const TaskLocks locks(descriptor);
  if (!locks.try_take_all()) return RemoveOutcome::kAlive;  // names.N2: no ps, worker or joiner has any byte
  RemoveOutcome removed = RemoveOutcome::kAbsent;
  if (leads_to(name, descriptor)) {  // names.N2: the name still leads to it
    fault_point(FaultPoint::kRemoveLocked);
    for (const std::string& left : unlink_parts(job)) {
      empty_segment(left);
      if (log)
        log(fmt::format("/dev/shm/{} belongs to {}, and only its owner can remove it; it was emptied and stays there",
                        left, owner_of(left)));
    }
    fault_point(FaultPoint::kRemoveParts);
    if (!unlink_segment(name)) {
      locks.release_all();
      throw Error(
          fmt::format("cannot remove /dev/shm/{}: it belongs to {}, and only its owner can; choose another job name",
                      name, owner_of(name)),
          ErrorCode::kPermissionDenied);
    }
    fault_point(FaultPoint::kRemoveUnlinked);
    removed = RemoveOutcome::kRemoved;
  }
  locks.release_all();  // the next process to take a byte finds that the name is gone (names.N3)
  return removed;
}

void remove_if_ended(const JobSegments& job) noexcept {
  if (!job.was_ended() || job.is_kept()) return;
  try {
    remove_job(job.job(), job.control().descriptor());
  } catch (const Error&) {
    // It belongs to another user, and only its owner can remove it.
  }
}

std::string who_has(const JobSegments& job) {
  const std::vector<LockHolder> holders = lock_holders(job.control().descriptor());
  std::vector<std::string> living;
  const auto add = [&](const char* what, std::uint32_t number, std::uint32_t byte, std::uint32_t noted) {
    if (job.locks().is_held_by_other(byte))
      living.push_back(fmt::format("{} {} (process {})", what, number, holder_of(holders, byte).value_or(noted)));
  };
  for (std::uint32_t task = 0; task < job.config().ps_tasks; ++task)
    add("ps task", task, kTaskByte + task, job.state().task_pids[task].load_relaxed());
  for (std::uint32_t rank = 0; rank < job.ranks(); ++rank)
    add("worker", rank, kRankByte + rank, job.worker(rank).pid.load_relaxed());
  if (living.empty()) return {};
  return fmt::format("{} {}", fmt::join(living, " and "), living.size() == 1 ? "has" : "have");
}

std::string who_keeps(const std::string& job, const Trust& trust) {
  Segment control;
  std::optional<JobSegments> found;
  try {
    control.open(control_name(job), Access::kReadOnly, kTrustAnybody);
    AttachOutcome outcome;
    found = JobSegments::try_attach_control(job, outcome, trust);
  } catch (const Error&) {
    // Damaged or not trusted: a process that attaches gets an error.
  }
  if (control.descriptor() < 0) return {};
  const TaskLocks locks(control.descriptor());
  const bool is_being_removed = locks.is_being_removed(), is_alive = !is_being_removed && locks.is_in_use_by_other();
  if (is_alive) {
    const std::string living = found && found->was_ended() ? who_has(*found) : "";
    return living.empty() ? "" : fmt::format("it was ended, and {} not left it yet", living);
  }
  if (!locks.is_any_held_by_other()) return {};
  const std::vector<LockHolder> holders = lock_holders(control.descriptor());
  return fmt::format("{} is {} it",
                     holders.empty() ? "a process that /proc does not show" : fmt::format("process {}", holders[0].pid),
                     is_being_removed ? "removing" : "changing");
}

JobSegments JobSegments::create(const JobConfig& config, const ShardOptions& options, const std::function<void()>& wait,
                                const std::function<void(JobSegments&)>& fill) {
  JobSegments job;
  job.job_ = config.job;
  const std::uint32_t ranks = config::ranks_of(config);
  const std::uint64_t instance = random_word() | 1;  // never 0
  const Sharing sharing = shared_with_group(config.group);
  job.trust_ = {.group = sharing.group};
  job.control_ = Segment::create(SegmentKind::kControl, 0, config.job, instance, control_bytes(ranks),
                                 control_bytes(ranks, kMaxVariables), sharing);
  job.control_.raise_descriptor();
  write_settings(job.settings(), config::resolved(config));
  job.config_ = read_settings(job.settings(), config.job);
  job.key_hash_ = new_key_hash(config);
  job.state().key_hash[0] = job.key_hash_.first, job.state().key_hash[1] = job.key_hash_.second;
  write_live(job.state().live[0], config::live_of(job.config()),
             traits_of(job.config().mode).has_staleness_bound ? 1 : 0);
  job.state().task_pids[0].store_relaxed(static_cast<std::uint32_t>(getpid()));  // relaxed: names.N6 publishes it
  job.state().servers.store_relaxed(1);
  if (fill) fill(job);
  fault_point(FaultPoint::kCreateFilled);
  if (!job.locks().try_take(kTaskByte))
    throw Error("cannot lock a new segment: the file system of /dev/shm must support OFD locks", ErrorCode::kSystem);
  fault_point(FaultPoint::kCreateLocked);
  const std::string name = control_name(config.job);
  NameWait names;
  while (!job.control_.link(name)) {  // names.N1: named only now, filled and owned
    Segment other;
    const AttachOutcome outcome = other.open(name, Access::kReadWrite, job.trust_);
    if (outcome == AttachOutcome::kAbsent) continue;  // its owner has removed it in the meantime
    if (outcome == AttachOutcome::kNoPermission || other.descriptor() < 0) throw attach_error(outcome, name);
    if (TaskLocks(other.descriptor()).is_in_use_by_other())
      throw Error(who_is_alive(config.job, other), ErrorCode::kAlreadyExists);
    if (remove_job(config.job, -1, {}, job.trust_) != RemoveOutcome::kAlive) continue;
    if (wait) wait();  // another process was faster: check again
    names.pause();
  }
  fault_point(FaultPoint::kCreateNamed);
  try {
    unlink_parts(config.job);  // of a job whose removal was interrupted; they are ours now, as the name is
    fault_point(FaultPoint::kCreateCleared);
    job.shards_.resize(job.config().ps_tasks);
    job.create_shard(0, options);
  } catch (...) {
    remove_job(config.job, job.control_.descriptor());
    throw;
  }
  job.control_.publish();
  fault_point(FaultPoint::kCreatePublished);
  return job;
}

void JobSegments::create_shard(std::uint32_t number, const ShardOptions& options) {
  const std::string name = shard_name(job_, number);
  Segment shard = Segment::create(SegmentKind::kShard, number, job_, instance(), shard_data_offset(),
                                  shm_capacity_bytes(), control_.sharing());
  const std::string refused = shard.place_memory(node_of(config(), number), config().huge_pages);
  if (!refused.empty() && options.warn) options.warn(fmt::format("shard {}: {}", number, refused));
  fault_point(FaultPoint::kShardMade);
  shard.publish();  // before it has a name: no process finds it incomplete
  if (!shard.link(name))
    throw Error(
        fmt::format("cannot name /dev/shm/{}: something that belongs to {} has the name; remove it, or choose another "
                    "job name",
                    name, owner_of(name)),
        ErrorCode::kAlreadyExists);
  fault_point(FaultPoint::kShardNamed);
  shards_[number] = std::move(shard);
}

void JobSegments::add_task(std::uint32_t task, const ShardOptions& options) {
  if (!try_add_task(task, options))
    throw Error(fmt::format("task {} of job '{}' is served by process {} already", task, job_,
                            state().task_pids[task].load_relaxed()),
                ErrorCode::kAlreadyExists);
}

bool JobSegments::try_add_task(std::uint32_t task, const ShardOptions& options,
                               const std::function<void(JobSegments&)>& check) {
  if (!locks().try_take(kTaskByte + task)) return false;
  if (is_orphaned()) {
    locks().release(kTaskByte + task);
    return false;
  }
  try {
    if (check) check(*this);
    fault_point(FaultPoint::kTaskTaken);
    state().task_pids[task].store_relaxed(static_cast<std::uint32_t>(getpid()));  // relaxed: diagnostic only
    fault_point(FaultPoint::kTaskNoted);
    if (!has_shard(task)) create_shard(task, options);
  } catch (...) {
    locks().release(kTaskByte + task);
    remove_if_ended(*this);  // names.N9
    throw;
  }
  fault_point(FaultPoint::kTaskServing);
  futex_announce(state().activity);
  return true;
}

// False: the job has no such shard.
bool JobSegments::try_map_shard(std::uint32_t number) {
  Segment shard;
  const AttachOutcome found = shard.open(shard_name(job_, number), access_, trust_);
  if (found == AttachOutcome::kAbsent) return false;
  if (found != AttachOutcome::kReady) throw attach_error(found, shard_name(job_, number));
  if (shard.header().instance != instance()) return false;  // names.N4: being removed, or another job by now
  if (!shard.is_of(SegmentKind::kShard, number, job_, instance()) ||
      shard.header().initial_bytes != shard_data_offset())
    fail_damaged(shard.name(), "it is not the shard of that number and job");
  shards_[number] = std::move(shard);
  return true;
}

std::optional<JobSegments> JobSegments::try_attach_control(const std::string& job, AttachOutcome& outcome,
                                                           const Trust& trust) {
  return try_attach_some(job, Access::kReadWrite, outcome, trust);
}

std::optional<JobSegments> JobSegments::try_attach(const std::string& job, Access access, AttachOutcome& outcome,
                                                   const Trust& trust) {
  std::optional<JobSegments> attached = try_attach_some(job, access, outcome, trust);
  if (!attached) return std::nullopt;
  for (const Segment& shard : attached->shards_)
    if (!shard.is_mapped()) {
      outcome = AttachOutcome::kShardMissing;
      return std::nullopt;
    }
  return attached;
}

std::optional<JobSegments> JobSegments::try_attach_some(const std::string& job, Access access, AttachOutcome& outcome,
                                                        const Trust& trust) {
  JobSegments attached;
  attached.job_ = job;
  attached.access_ = access;
  outcome = attached.control_.open(control_name(job), access, trust);
  if (outcome == AttachOutcome::kAbsent || outcome == AttachOutcome::kBeingCreated) return std::nullopt;
  if (outcome != AttachOutcome::kReady) throw attach_error(outcome, control_name(job));
  if (access == Access::kReadWrite) attached.control_.raise_descriptor();
  attached.trust_ = {.group = attached.control_.sharing().group, .anybody = trust.anybody};
  if (attached.control_.header().initial_bytes < kWorkersOffset)
    fail_damaged(control_name(job), "it is too short to be a control segment");
  try {
    attached.config_ = read_settings(attached.settings(), job);
  } catch (const Error& error) {
    fail_damaged(control_name(job), fmt::format("its settings cannot be read ({})", error.what()));
  }
  const auto& key_hash = attached.state().key_hash;
  attached.key_hash_ = {.first = read_once(key_hash[0]), .second = read_once(key_hash[1])};
  check_settings(attached);
  attached.shards_.resize(attached.config().ps_tasks);
  for (std::uint32_t number = 0; number < attached.config().ps_tasks; ++number) attached.try_map_shard(number);
  return attached;
}

std::size_t JobSegments::shard_data_offset() const noexcept {
  return round_up(kFreeBuffersOffset + lanes() * sizeof(FreeBufferTableShm), kPage);
}

}  // namespace ps_shm::shm
