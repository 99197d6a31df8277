#include "shm/job_segments.hpp"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstring>

#include "ps/errors.hpp"
#include "shm/futex.hpp"
#include "shm/live_settings.hpp"
#include "shm/memory_policy.hpp"
#include "shm/validation.hpp"

namespace ps::shm {
namespace {

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::uint64_t new_instance() {
  std::uint64_t instance = 0;
  if (getrandom(&instance, sizeof instance, GRND_NONBLOCK) != sizeof instance)
    instance = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()) ^
               (static_cast<std::uint64_t>(getpid()) << 40);
  return instance | 1;  // never 0
}

template <class Enum>
std::uint32_t number_of(Enum value) noexcept {
  return static_cast<std::uint32_t>(value);
}

void write_optimizer(JobConfigShm& out, const Optimizer& in) {
  out.rule = number_of(in.rule);
  out.learning_rate = in.learning_rate.value_or(default_learning_rate(in.rule));
  out.clip_norm = in.clip_norm;
  out.schedule_kind = number_of(in.schedule.kind);
  out.schedule_decay = in.schedule.decay;
  out.schedule_decay_steps = in.schedule.decay_steps;
  out.schedule_warmup_steps = in.schedule.warmup_steps;
  out.staleness_scaling = in.staleness_scaling;
  out.momentum = in.momentum;
  out.beta1 = in.beta1, out.beta2 = in.beta2;
  out.rho = in.rho;
  out.epsilon = in.epsilon;
  out.initial_accumulator = in.initial_accumulator;
  out.ftrl_beta = in.ftrl_beta;
  out.l1 = in.l1, out.l2 = in.l2;
  out.weight_decay = in.weight_decay.value_or(default_weight_decay(in.rule));
  out.clip_value = in.clip_value;
  out.ema = in.ema;
}

void write_config(JobConfigShm& out, const JobConfig& in, std::uint32_t ranks) {
  out.workers = in.workers;
  out.max_workers = ranks;
  out.threads = in.threads;
  out.shards = in.tasks;
  out.mode = number_of(in.mode);
  out.layout = number_of(in.layout);
  out.adds = number_of(in.adds);
  out.reduce = number_of(in.reduce);
  out.placement = number_of(in.placement);
  out.partition_by = number_of(in.partition_by);
  out.partitions = in.partitions;
  out.max_part_bytes = in.max_part_bytes;
  out.chunk_bytes = in.chunk_bytes;
  out.steps = in.steps;
  out.seed = in.seed;
  out.linger_seconds = in.linger_seconds;
  out.step_timeout_seconds = in.step_timeout_seconds;
  out.elastic_min = in.elastic_min, out.elastic_max = in.elastic_max;
  out.places = static_cast<std::uint32_t>(in.place.size());
  out.numa = number_of(in.numa);
  out.numa_nodes = static_cast<std::uint32_t>(in.numa_nodes.size());
  std::copy(in.numa_nodes.begin(), in.numa_nodes.end(), out.nodes);
  out.huge_pages = in.huge_pages;
  out.staleness = in.staleness;
  out.quorum = in.quorum;
  write_optimizer(out, in.optimizer);
}

// The memory node that a shard's pages shall come from, if any.
std::optional<std::uint32_t> node_of(const JobConfigShm& config, std::uint32_t shard) {
  switch (static_cast<Numa>(config.numa)) {
    case Numa::kAuto:
      if (const auto nodes = memory_nodes(); nodes.size() > 1) return nodes[shard % nodes.size()];
      return std::nullopt;
    case Numa::kNodes:
      return config.nodes[shard % config.numa_nodes];
    case Numa::kNone:
      break;
  }
  return std::nullopt;
}

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

// Whether `name` is a shard, a gradient segment or the shared data of the job; its control segment is not one.
bool is_part_of(const std::string& job, const std::string& name) {
  const std::string prefix = control_name(job) + ".";
  if (name.compare(0, prefix.size(), prefix) != 0) return false;
  const std::string rest = name.substr(prefix.size());
  if (is_number(rest) || name == data_name(job)) return true;
  const auto dot = rest.find('.');
  return rest.size() > 3 && rest[0] == 'w' && dot != std::string::npos && is_number(rest.substr(1, dot - 1)) &&
         is_number(rest.substr(dot + 1));
}

// Returns what belongs to other users and stays.
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
  // Of another version or damaged: nothing in it can be read, but its locks can.
  return TaskLocks(control.descriptor()).is_any_task_held_by_other()
             ? fmt::format("job '{}' already has a ps; choose another --job name, or end that ps first", job)
             : fmt::format("job '{}' has just come to life without a ps; start again to take it over", job);
}

}  // namespace

std::size_t control_bytes(std::uint32_t ranks) noexcept {
  return round_up(kWorkersOffset + ranks * sizeof(WorkerShm), kPage);
}

RemoveOutcome remove_job(const std::string& job, int own, const std::function<void(const std::string&)>& notice) {
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
    fault_point(FaultPoint::kRemoveLocked);
    for (const std::string& left : unlink_parts(job)) {
      empty_segment(left);
      if (notice)
        notice(fmt::format("/dev/shm/{} belongs to {}, who alone can remove it: it is left there, empty", left,
                           owner_of(left)));
    }
    fault_point(FaultPoint::kRemoveParts);
    if (!unlink_segment(name)) {
      locks.release_all();
      throw Error(fmt::format("cannot remove /dev/shm/{}: it belongs to {}, who alone can; choose another job name",
                              name, owner_of(name)));
    }
    fault_point(FaultPoint::kRemoveUnlinked);
    removed = RemoveOutcome::kRemoved;
  }
  locks.release_all();  // whoever takes a byte now finds st_nlink 0 (N3)
  return removed;
}

JobSegments JobSegments::create(const JobConfig& config, const ShardOptions& options) {
  const std::uint32_t ranks = config.max_workers != 0
                                  ? config.max_workers
                                  : std::min(kMaxRanks, std::max<std::uint32_t>(16, 2 * config.workers));
  JobSegments job;
  job.job_ = config.job;
  const std::size_t bytes = control_bytes(ranks);
  const std::uint64_t instance = new_instance();
  job.control_ =
      Segment::create(SegmentKind::kControl, 0, config.job, instance, bytes, bytes, shared_with_group(config.group));
  write_config(*reinterpret_cast<JobConfigShm*>(job.control_.data() + kConfigOffset), config, ranks);
  initialise_live(job, job.settings());
  job.state().task_pids[0].store_relaxed(static_cast<std::uint32_t>(getpid()));
  job.state().servers.store_relaxed(1);
  fault_point(FaultPoint::kCreateFilled);
  if (!job.locks().try_take(kTaskByte))
    throw Error("cannot lock a new segment: does /dev/shm's file system have OFD locks?");
  fault_point(FaultPoint::kCreateLocked);
  std::uint32_t places = 0;
  for (const auto& [variable, shard] : config.place) {
    PlaceShm& place = job.place(places++);
    variable.copy(place.name, sizeof place.name - 1);
    place.shard = shard;
  }
  const std::string name = control_name(config.job);
  NameWait names;
  while (!job.control_.link(name)) {  // N1: named only now, filled and owned
    Segment other;
    const AttachOutcome outcome = other.open(name, Access::kReadWrite);
    if (outcome == AttachOutcome::kAbsent) continue;  // its owner removed it meanwhile
    if (outcome == AttachOutcome::kNoPermission || other.descriptor() < 0) throw Error(describe(outcome, name));
    if (TaskLocks(other.descriptor()).is_in_use_by_other()) throw Error(who_is_alive(config.job, other));
    if (remove_job(config.job) == RemoveOutcome::kAlive) names.pause();  // somebody was faster: look again
  }
  fault_point(FaultPoint::kCreateNamed);
  try {
    unlink_parts(config.job);  // of a job that died while it was being removed; the name, and so they, are ours now
    fault_point(FaultPoint::kCreateCleared);
    job.shards_.resize(job.config().shards);
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
  const std::string refused = shard.place_memory(node_of(config(), number), config().huge_pages != 0);
  if (!refused.empty() && options.warn) options.warn(fmt::format("shard {}: {}", number, refused));
  fault_point(FaultPoint::kShardMade);
  shard.publish();  // before it has a name: nobody finds it half-made
  if (!shard.link(name))
    throw Error(
        fmt::format("cannot name /dev/shm/{}: something of {} has taken the name; remove it, or choose another "
                    "job name",
                    name, owner_of(name)));
  fault_point(FaultPoint::kShardNamed);
  shards_[number] = std::move(shard);
}

void JobSegments::add_task(std::uint32_t task, const ShardOptions& options) {
  if (!try_add_task(task, options))
    throw Error(fmt::format("task {} of job '{}' is served by process {} already", task, job_,
                            state().task_pids[task].load_relaxed()));
}

bool JobSegments::try_add_task(std::uint32_t task, const ShardOptions& options,
                               const std::function<void(JobSegments&)>& check) {
  if (!locks().try_take(kTaskByte + task)) return false;
  if (is_orphaned()) {
    locks().release(kTaskByte + task);
    return false;
  }
  if (check) check(*this);
  fault_point(FaultPoint::kTaskTaken);
  state().task_pids[task].store_relaxed(static_cast<std::uint32_t>(getpid()));
  fault_point(FaultPoint::kTaskNoted);
  if (!shards_[task].is_mapped() && !try_map_shard(task, Access::kReadWrite)) create_shard(task, options);
  fault_point(FaultPoint::kTaskServing);
  futex_announce(state().activity);
  return true;
}

// False: there is none of this job.
bool JobSegments::try_map_shard(std::uint32_t number, Access access) {
  Segment shard;
  const AttachOutcome found = shard.open(shard_name(job_, number), access);
  if (found == AttachOutcome::kAbsent) return false;
  if (found != AttachOutcome::kReady) throw Error(describe(found, shard_name(job_, number)));
  if (shard.header().instance != instance()) return false;  // N4: the job is being removed, or is another one by now
  if (!shard.is_of(SegmentKind::kShard, number, job_, instance()) ||
      shard.header().initial_bytes != shard_data_offset())
    fail_damaged(shard.name(), "it is no shard of that number and job");
  shards_[number] = std::move(shard);
  return true;
}

std::optional<JobSegments> JobSegments::try_attach_control(const std::string& job, AttachOutcome& outcome) {
  return try_attach_some(job, Access::kReadWrite, outcome);
}

std::optional<JobSegments> JobSegments::try_attach(const std::string& job, Access access, AttachOutcome& outcome) {
  std::optional<JobSegments> attached = try_attach_some(job, access, outcome);
  if (!attached) return std::nullopt;
  for (const Segment& shard : attached->shards_)
    if (!shard.is_mapped()) {
      outcome = AttachOutcome::kShardMissing;
      return std::nullopt;
    }
  return attached;
}

std::optional<JobSegments> JobSegments::try_attach_some(const std::string& job, Access access, AttachOutcome& outcome) {
  JobSegments attached;
  attached.job_ = job;
  outcome = attached.control_.open(control_name(job), access);
  if (outcome == AttachOutcome::kAbsent || outcome == AttachOutcome::kBeingCreated) return std::nullopt;
  if (outcome != AttachOutcome::kReady) throw Error(describe(outcome, control_name(job)));
  if (attached.control_.header().initial_bytes < kWorkersOffset)
    fail_damaged(control_name(job), "it is too short for a control segment");
  auto config = std::make_unique<JobConfigShm>();
  std::memcpy(static_cast<void*>(config.get()), &attached.config(), sizeof *config);
  attached.config_ = std::move(config);
  check_settings(attached);
  attached.shards_.resize(attached.config().shards);
  for (std::uint32_t number = 0; number < attached.config().shards; ++number) attached.try_map_shard(number, access);
  return attached;
}

std::size_t JobSegments::shard_data_offset() const noexcept {
  return round_up(kSparesOffset + lanes() * sizeof(SpareTableShm), kPage);
}

Optimizer optimizer_of(const JobConfigShm& in) noexcept {
  Optimizer out;
  out.rule = static_cast<UpdateRule>(in.rule);
  out.learning_rate = in.learning_rate;
  out.clip_norm = in.clip_norm;
  out.schedule = {static_cast<Schedule::Kind>(in.schedule_kind), in.schedule_decay, in.schedule_decay_steps,
                  in.schedule_warmup_steps};
  out.staleness_scaling = in.staleness_scaling != 0;
  out.momentum = in.momentum;
  out.beta1 = in.beta1, out.beta2 = in.beta2;
  out.rho = in.rho;
  out.epsilon = in.epsilon;
  out.initial_accumulator = in.initial_accumulator;
  out.ftrl_beta = in.ftrl_beta;
  out.l1 = in.l1, out.l2 = in.l2;
  out.weight_decay = in.weight_decay;
  out.clip_value = in.clip_value;
  out.ema = in.ema;
  return out;
}

JobConfig JobSegments::settings() const {
  const JobConfigShm& in = config();
  JobConfig out;
  out.job = job_;
  out.workers = in.workers;
  out.max_workers = in.max_workers;
  out.threads = in.threads;
  out.mode = static_cast<Mode>(in.mode);
  out.layout = static_cast<Layout>(in.layout);
  out.adds = static_cast<Adds>(in.adds);
  out.reduce = static_cast<Reduce>(in.reduce);
  out.optimizer = optimizer_of(in);
  out.steps = in.steps;
  out.seed = in.seed;
  out.linger_seconds = in.linger_seconds;
  out.step_timeout_seconds = in.step_timeout_seconds;
  out.tasks = in.shards;
  out.placement = static_cast<Placement>(in.placement);
  out.partition_by = static_cast<PartitionBy>(in.partition_by);
  out.partitions = in.partitions;
  out.max_part_bytes = in.max_part_bytes;
  out.chunk_bytes = in.chunk_bytes;
  for (std::uint32_t i = 0; i < std::min(in.places, kMaxPlaces); ++i)
    out.place.emplace(text_of(place(i).name), place(i).shard);
  out.numa = static_cast<Numa>(in.numa);
  out.numa_nodes.assign(in.nodes, in.nodes + std::min(in.numa_nodes, kMaxNodes));
  out.huge_pages = in.huge_pages != 0;
  out.elastic_min = in.elastic_min, out.elastic_max = in.elastic_max;
  out.staleness = in.staleness;
  out.quorum = in.quorum;
  return out;
}

}  // namespace ps::shm
