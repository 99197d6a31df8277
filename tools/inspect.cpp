#include "inspect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "ps/errors.hpp"
#include "ps/job_control.hpp"
#include "ps/job_view.hpp"
#include "shm/job_segments.hpp"

namespace ps::inspect {
namespace {

using shm::AttachOutcome;

bool is_job_name(const std::string& name) {
  try {
    check_job_name(name);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Every job's names in /dev/shm; a job whose control segment is gone may have some left.
std::map<std::string, std::vector<std::string>> names_by_job() {
  std::map<std::string, std::vector<std::string>> jobs;
  for (const std::string& name : shm::list_segments("ps.")) {
    const std::string job = name.substr(3, name.find('.', 3) - 3);
    if (is_job_name(job)) jobs[job].push_back(name);
  }
  return jobs;
}

AttachOutcome open_any(shm::Segment& segment, const std::string& name, shm::Access access = shm::Access::kReadOnly) {
  try {
    return segment.open(name, access);
  } catch (const Error&) {
    return AttachOutcome::kDamaged;  // its header asks for more than can be mapped
  }
}

std::uint64_t bytes_of(const std::vector<std::string>& names) {
  std::uint64_t bytes = 0;
  for (const std::string& name : names) {
    shm::Segment segment;
    open_any(segment, name);
    bytes += segment.file_bytes();
  }
  return bytes;
}

std::string state_of(const shm::Segment& control, AttachOutcome outcome) {
  const shm::TaskLocks locks(control.descriptor());
  const bool held = control.descriptor() >= 0 && locks.is_any_held_by_other();
  switch (outcome) {
    case AttachOutcome::kAbsent:
      return "leftover";
    case AttachOutcome::kShardMissing:  // of whole jobs, never of one segment
    case AttachOutcome::kBeingCreated:
      return held ? "being created" : "half-made";
    case AttachOutcome::kOtherVersion:
      return "other version";
    case AttachOutcome::kOtherBuild:
      return "other build";
    case AttachOutcome::kDamaged:
      return "damaged";
    case AttachOutcome::kNoPermission:
      return "no permission";
    case AttachOutcome::kReady:
      break;
  }
  if (!held) return "dead";
  return locks.is_any_task_held_by_other() ? "live" : "orphaned";
}

double age_seconds(std::uint64_t created_unix_ns) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return std::max(0.0, now.count() - double(created_unix_ns) * 1e-9);
}

shm::JobSegments attach(const std::string& job) {
  AttachOutcome outcome;
  std::optional<shm::JobSegments> attached = shm::JobSegments::try_attach(job, shm::Access::kReadOnly, outcome);
  if (!attached) throw Error(shm::describe(outcome, shm::control_name(job)));
  return std::move(*attached);
}

// Another user's files cannot be removed from /dev/shm: says so.
void check_removed(const std::string& job, const std::vector<std::string>& names) {
  const std::vector<std::string> left = shm::list_segments(shm::control_name(job));
  if (std::find(left.begin(), left.end(), shm::control_name(job)) != left.end())
    return;  // a new job has the name already
  for (const std::string& name : names)
    if (std::find(left.begin(), left.end(), name) != left.end())
      throw Error(
          fmt::format("cannot remove /dev/shm/{}: it belongs to another user, or is no file; remove it by hand", name));
}

// KEY=VALUE into `settings`. Throws BadUsage where it can't be read; whether it is possible is checked later.
void read_change(const std::string& text, LiveSettings& settings) {
  const auto equals = text.find('=');
  const std::string key = text.substr(0, equals), value = equals == std::string::npos ? "" : text.substr(equals + 1);
  const auto read = [&](auto& out) {
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out);
    if (error != std::errc{} || end != value.data() + value.size())
      throw BadUsage(fmt::format("'{}' is no value for {}", value, key));
  };
  if (key == "mode") {
    for (const Mode mode : {Mode::kAsync, Mode::kSsp, Mode::kSync})
      if (value == to_string(mode)) {
        settings.mode = mode;
        return;
      }
    throw BadUsage(fmt::format("unknown mode '{}'; expected async, ssp or sync", value));
  }
  if (key == "staleness") return read(settings.staleness);
  if (key == "quorum") return read(settings.quorum);
  if (key == "lr") return read(settings.learning_rate);
  if (key == "clip-norm") return read(settings.clip_norm);
  if (key == "workers") return read(settings.workers);
  throw BadUsage(fmt::format(
      "'{}' cannot be set; what can be: mode, staleness, quorum, lr, clip-norm, workers, each as KEY=VALUE", key));
}

Json node_of(int node) { return node < 0 ? Json() : Json(node); }

Json live_of(const LiveSettings& live) {
  return {{"mode", to_string(live.mode)}, {"staleness", live.staleness}, {"quorum", live.quorum},
          {"lr", live.learning_rate},     {"clip-norm", live.clip_norm}, {"workers", live.workers}};
}

Json settings_of(const JobConfig& config) {
  const Optimizer& optimizer = config.optimizer;
  return {{"workers", config.workers},
          {"max_workers", config.max_workers},
          {"elastic_min", config.elastic_min},
          {"elastic_max", config.elastic_max},
          {"threads", config.threads},
          {"mode", to_string(config.mode)},
          {"staleness", config.staleness},
          {"quorum", config.quorum},
          {"reduce", to_string(config.reduce)},
          {"layout", to_string(config.layout)},
          {"adds", to_string(config.adds)},
          {"steps", config.steps},
          {"optimizer", to_string(optimizer.rule)},
          {"lr", optimizer.learning_rate.value_or(0)},
          {"lr_schedule", optimizer.schedule.to_string()},
          {"lr_staleness", optimizer.staleness_scaling},
          {"momentum", optimizer.momentum},
          {"beta1", optimizer.beta1},
          {"beta2", optimizer.beta2},
          {"rho", optimizer.rho},
          {"epsilon", optimizer.epsilon},
          {"initial_accumulator", optimizer.initial_accumulator},
          {"ftrl_beta", optimizer.ftrl_beta},
          {"l1", optimizer.l1},
          {"l2", optimizer.l2},
          {"weight_decay", optimizer.weight_decay.value_or(0)},
          {"clip_value", optimizer.clip_value},
          {"clip_norm", optimizer.clip_norm},
          {"ema", optimizer.ema},
          {"placement", to_string(config.placement)},
          {"partitions", config.partitions},
          {"max_part_bytes", config.max_part_bytes},
          {"place", config.place},
          {"huge_pages", config.huge_pages},
          {"seed", config.seed},
          {"linger", config.linger_seconds},
          {"step_timeout", config.step_timeout_seconds}};
}

Json staleness_of(const StalenessSummary& staleness) {
  return {{"mean", staleness.mean}, {"p50", staleness.p50}, {"p99", staleness.p99}, {"max", staleness.max}};
}

// What a living job's owner has to end, in one line.
std::string why_alive(const std::string& job) {
  std::vector<std::string> living;
  try {
    if (const std::optional<JobView> view = JobView::try_open(job)) {
      if (const JobInfo info = view->info(); info.served) living.push_back(fmt::format("its ps (pid {})", info.ps_pid));
      for (const WorkerInfo& worker : view->workers())
        if (worker.state == WorkerState::kAlive)
          living.push_back(fmt::format("worker {} (pid {})", worker.rank, worker.pid));
    }
  } catch (const Error&) {  // unreadable: the locks alone say that it is alive
  }
  if (living.empty()) living.push_back(fmt::format("the processes that have /dev/shm/{} open", shm::control_name(job)));
  return fmt::format("job '{}' is alive; first end {}", job, fmt::join(living, ", "));
}

// Takes the job's name and all its locks, so that nobody can use or create it meanwhile, and removes what begins with
// it. The name may be missing, or lead to anything.
void remove_by_force(const std::string& job) {
  const std::string name = shm::control_name(job);
  shm::Segment control;
  const AttachOutcome outcome = open_any(control, name, shm::Access::kReadWrite);
  if (outcome == AttachOutcome::kNoPermission) throw Error(shm::describe(outcome, name));
  if (control.descriptor() < 0) {
    if (outcome != AttachOutcome::kAbsent) shm::unlink_segment(name);  // a link, which was never a job
    control = shm::Segment::create(shm::SegmentKind::kControl, 0, job, 0, shm::kPage, shm::kPage);
  }
  if (!shm::TaskLocks(control.descriptor()).try_take_all()) throw Error(why_alive(job));
  if (!control.is_named(name) && !control.link(name))
    throw Error(fmt::format("/dev/shm/{} has changed meanwhile, or cannot be removed; look with inspect_shm ls", name));
  for (const std::string& part : shm::list_segments(name + ".")) shm::unlink_segment(part);
  if (shm::remove_job(job, control.descriptor()) != shm::RemoveOutcome::kRemoved) throw Error(why_alive(job));
}

}  // namespace

std::string only_job() {
  const auto jobs = names_by_job();
  if (jobs.empty()) throw Error("there is no job on this machine; start one with launch_shm or ps_shm");
  if (jobs.size() == 1) return jobs.begin()->first;
  std::vector<std::string> names;
  for (const auto& [job, segments] : jobs) names.push_back(job);
  throw Error(fmt::format("there are {} jobs, choose one with --job: {}", names.size(), fmt::join(names, ", ")));
}

Json list_jobs() {
  Json all = Json::array();
  for (const auto& [job, names] : names_by_job()) {
    shm::Segment control;
    const AttachOutcome outcome = open_any(control, shm::control_name(job));
    Json row = {{"job", job},
                {"state", state_of(control, outcome)},
                {"ps_pid", nullptr},
                {"workers_alive", nullptr},
                {"workers", nullptr},
                {"global_step", nullptr},
                {"bytes", bytes_of(names)},
                {"age_seconds", nullptr}};
    if (outcome == AttachOutcome::kReady) {
      row["age_seconds"] = age_seconds(control.header().created_unix_ns);
      try {
        if (const std::optional<JobView> view = JobView::try_open(job)) {
          const JobInfo info = view->info();
          const std::vector<WorkerInfo> workers = view->workers();
          row["ps_pid"] = info.ps_pid;
          row["workers_alive"] = std::count_if(workers.begin(), workers.end(),
                                               [](const WorkerInfo& w) { return w.state == WorkerState::kAlive; });
          row["workers"] = info.config.workers;
          row["global_step"] = info.global_step;
        }
      } catch (const Error&) {
        row["state"] = "damaged";
      }
    }
    all.push_back(std::move(row));
  }
  return {{"jobs", std::move(all)}};
}

Json show_job(const std::string& job) {
  const JobView view(job);
  const JobInfo info = view.info();
  const JobConfig& config = info.config;
  const shm::JobSegments segments = attach(job);
  Json shown = {{"job", job},
                {"state", state_of(segments.control(), AttachOutcome::kReady)},
                {"ps_pid", info.ps_pid},
                {"servers", info.servers},
                {"instance", fmt::format("{:016x}", info.instance)},
                {"age_seconds", age_seconds(info.created_unix_ns)},
                {"settings", settings_of(config)},
                {"live", live_of(info.live)},
                {"live_version", info.live_version},
                {"global_step", info.global_step},
                {"finished", info.finished},
                {"ended", segments.state().ended.load_acquire() != 0}};
  // Of the training step's barrier: the last step whose contributors are decided, and the rank that proposed them.
  const std::uint64_t decision = segments.barrier(0).decision.load_acquire();
  shown["decision"] = {{"word", decision}, {"step", nullptr}, {"proposer", nullptr}};
  if (decision >> 16 != 0)
    shown["decision"]["step"] = (decision >> 16) - 1, shown["decision"]["proposer"] = decision & 0xffff;
  shown["segments"] = Json::array();
  std::vector<std::string> names = shm::list_segments(shm::control_name(job) + ".");
  names.insert(names.begin(), shm::control_name(job));
  for (const std::string& name : names) shown["segments"].push_back({{"name", name}, {"bytes", bytes_of({name})}});
  shown["shards"] = Json::array();
  for (std::size_t shard = 0; shard < info.tasks.size(); ++shard) {
    const TaskInfo& task = info.tasks[shard];
    shown["shards"].push_back({{"shard", shard},
                               {"served", task.is_alive},
                               {"pid", task.pid},
                               {"node", node_of(task.node)},
                               {"huge_pages", task.huge_pages},
                               {"variables", task.variables},
                               {"used_bytes", task.used_bytes},
                               {"file_bytes", task.file_bytes},
                               {"reserved_bytes", task.reserved_bytes}});
  }
  const ByteCount& bytes = info.bytes;
  shown["bytes"] = {
      {"values", bytes.values},       {"optimizer_slots", bytes.slots}, {"accumulators", bytes.accumulators},
      {"gradients", bytes.gradients}, {"spares", bytes.spares},         {"words", bytes.words},
      {"padding", bytes.padding},     {"control", bytes.control},       {"total", bytes.total()}};
  return shown;
}

Json list_variables(const std::string& job) {
  Json all = Json::array();
  for (const VariableInfo& variable : JobView(job).variables()) {
    Json parts = Json::array();
    for (const PartInfo& part : variable.parts)
      parts.push_back({{"shard", part.shard},
                       {"node", node_of(part.node)},
                       {"first_row", part.first_row},
                       {"rows", part.rows},
                       {"bytes", part.bytes},
                       {"slot_bytes", part.slot_bytes},
                       {"pieces", part.pieces},
                       {"piece_elements", part.piece_elements}});
    all.push_back({{"name", variable.name},
                   {"dtype", to_string(variable.dtype)},
                   {"shape", variable.shape},
                   {"rule", to_string(variable.rule)},
                   {"layout", to_string(variable.layout)},
                   {"element_count", variable.element_count},
                   {"bytes", variable.bytes},
                   {"slots", variable.slots},
                   {"parts", std::move(parts)},
                   {"updates", variable.updates},
                   {"initialised", variable.initialised}});
  }
  return {{"job", job}, {"variables", std::move(all)}};
}

Json list_events(const std::string& job, const std::string& kind) {
  Json all = Json::array();
  for (const Event& event : JobView(job).events()) {
    if (!kind.empty() && event.kind != kind) continue;
    all.push_back({{"unix_ns", event.unix_ns},
                   {"kind", event.kind},
                   {"rank", event.rank ? Json(*event.rank) : Json()},
                   {"step", event.step},
                   {"ranks", event.ranks},
                   {"text", event.text}});
  }
  return {{"job", job}, {"events", std::move(all)}};
}

Json list_workers(const std::string& job) {
  Json all = Json::array();
  for (const WorkerInfo& worker : JobView(job).workers())
    all.push_back({{"rank", worker.rank},
                   {"state", to_string(worker.state)},
                   {"pid", worker.pid},
                   {"holders", worker.holders},
                   {"steps", worker.steps},
                   {"pushes", worker.pushes},
                   {"pulls", worker.pulls},
                   {"push_retries", worker.push_retries},
                   {"pull_retries", worker.pull_retries},
                   {"dropped", worker.dropped},
                   {"clock", worker.clock},
                   {"lead_max", worker.lead_max},
                   {"examples", worker.examples},
                   {"loss", worker.loss},
                   {"seconds", worker.seconds},
                   {"staleness", staleness_of(worker.staleness)},
                   {"waiting_for", worker.waiting_for.empty() ? Json() : Json(worker.waiting_for)}});
  return {{"job", job}, {"workers", std::move(all)}};
}

Json dump_values(const std::string& job, const std::vector<std::string>& names, std::uint64_t limit) {
  const JobView view(job);
  std::vector<VariableInfo> chosen = view.variables();
  if (!names.empty()) {
    for (const std::string& name : names)
      if (std::none_of(chosen.begin(), chosen.end(), [&](const VariableInfo& v) { return v.name == name; }))
        view.values(name);  // throws: lists those there are
    std::erase_if(chosen,
                  [&](const VariableInfo& v) { return std::find(names.begin(), names.end(), v.name) == names.end(); });
  }
  Json all = Json::array();
  for (const VariableInfo& variable : chosen) {
    Json row = {{"name", variable.name},
                {"shape", variable.shape},
                {"element_count", variable.element_count},
                {"initialised", variable.initialised}};
    if (variable.initialised || !names.empty()) {
      const std::vector<float> values = view.values(variable.name);
      double min = std::numeric_limits<double>::infinity(), max = -min, sum = 0, squares = 0;
      std::uint64_t nan_count = 0;
      for (const float value : values) {
        nan_count += std::isnan(value);
        min = std::fmin(min, value), max = std::fmax(max, value);
        sum += double(value), squares += double(value) * double(value);
      }
      row.update({{"min", min},
                  {"max", max},
                  {"mean", sum / double(values.size())},
                  {"norm", std::sqrt(squares)},
                  {"nan_count", nan_count}});
      const std::size_t shown = limit == 0 ? values.size() : std::min<std::size_t>(limit, values.size());
      row["values"] = std::vector<float>(values.begin(), values.begin() + std::ptrdiff_t(shown));
    }
    all.push_back(std::move(row));
  }
  return {{"job", job}, {"variables", std::move(all)}};
}

Json change_settings(const std::string& job, const std::vector<std::string>& changes) {
  JobControl control(job);
  LiveSettings settings = control.current();
  const Json before = live_of(settings);
  for (const std::string& change : changes) read_change(change, settings);
  control.change(settings);
  Json changed = Json::object();
  const Json after = live_of(control.current());
  for (const auto& [key, value] : after.items())
    if (value != before[key]) changed[key] = {{"before", before[key]}, {"after", value}};
  return {{"job", job}, {"changed", std::move(changed)}};
}

Json remove(const std::string& job, bool force) {
  check_job_name(job);
  const auto jobs = names_by_job();
  const auto found = jobs.find(job);
  if (found == jobs.end())
    throw Error(fmt::format("there is no job '{}'; see inspect_shm ls for those there are", job));
  const Json removed = {{"job", job}, {"removed", found->second}, {"bytes", bytes_of(found->second)}};
  if (force) {
    remove_by_force(job);
    check_removed(job, found->second);
    return removed;
  }
  shm::Segment control;
  const AttachOutcome outcome = open_any(control, shm::control_name(job));
  if (outcome == AttachOutcome::kAbsent)
    throw Error(fmt::format(
        "job '{}' has segments left but no control segment; remove them with inspect_shm rm --force --job {}", job,
        job));
  if (outcome != AttachOutcome::kReady && outcome != AttachOutcome::kBeingCreated)
    throw Error(shm::describe(outcome, shm::control_name(job)));
  switch (shm::remove_job(job)) {
    case shm::RemoveOutcome::kRemoved:
      return removed;
    case shm::RemoveOutcome::kAlive:
      throw Error(why_alive(job));
    case shm::RemoveOutcome::kAbsent:
      break;
  }
  throw Error(fmt::format("job '{}' has been removed by somebody else meanwhile", job));
}

}  // namespace ps::inspect
