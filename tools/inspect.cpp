#include "inspect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "ps/errors.hpp"
#include "ps/job_view.hpp"
#include "shm/directory.hpp"

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
  return locks.is_held_by_other(shm::kTaskByte) ? "live" : "orphaned";
}

double age_seconds(std::uint64_t created_unix_ns) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return std::max(0.0, now.count() - double(created_unix_ns) * 1e-9);
}

std::string bytes_as_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double amount = double(bytes);
  std::size_t unit = 0;
  for (; amount >= 1024 && unit + 1 < std::size(kUnits); ++unit) amount /= 1024;
  return fmt::format("{:.{}f} {}", amount, unit == 0 ? 0 : 1, kUnits[unit]);
}

std::string age_as_text(double seconds) {
  const auto whole = static_cast<std::uint64_t>(seconds);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min", whole / 60);
  return whole < 172800 ? fmt::format("{} h {} min", whole / 3600, whole / 60 % 60)
                        : fmt::format("{} d", whole / 86400);
}

std::string cell(const Json& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  return value.dump();
}

// Columns as wide as they need; numbers are right-aligned under their title.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows[0].size());
  std::vector<bool> numeric(rows[0].size(), rows.size() > 1);
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::size_t c = 0; c < widths.size(); ++c) {
      widths[c] = std::max(widths[c], rows[r][c].size());
      if (r != 0 && rows[r][c].find_first_not_of("0123456789.+-einfa") != std::string::npos) numeric[c] = false;
    }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < widths.size(); ++c)
      line += numeric[c] ? fmt::format("{:>{}}  ", row[c], widths[c]) : fmt::format("{:<{}}  ", row[c], widths[c]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
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

std::string jobs_as_text(const Json& jobs) {
  std::vector<std::vector<std::string>> rows = {{"JOB", "STATE", "PS", "WORKERS", "STEP", "SIZE", "AGE"}};
  for (const Json& row : jobs["jobs"])
    rows.push_back({cell(row["job"]), cell(row["state"]), row["state"] == "live" ? cell(row["ps_pid"]) : "-",
                    row["workers"].is_null() ? "-" : cell(row["workers_alive"]) + "/" + cell(row["workers"]),
                    cell(row["global_step"]), bytes_as_text(row["bytes"]),
                    row["age_seconds"].is_null() ? "-" : age_as_text(row["age_seconds"])});
  return rows.size() == 1 ? "no jobs\n" : table(rows);
}

Json show_job(const std::string& job) {
  const JobView view(job);
  const JobInfo info = view.info();
  const JobConfig& config = info.config;
  shm::JobSegments segments = attach(job);
  Json shown = {{"job", job},
                {"state", state_of(segments.control(), AttachOutcome::kReady)},
                {"ps_pid", info.ps_pid},
                {"instance", fmt::format("{:016x}", info.instance)},
                {"age_seconds", age_seconds(info.created_unix_ns)},
                {"settings",
                 {{"workers", config.workers},
                  {"max_workers", config.max_workers},
                  {"mode", to_string(config.mode)},
                  {"layout", to_string(config.layout)},
                  {"adds", to_string(config.adds)},
                  {"steps", config.steps},
                  {"lr", config.learning_rate},
                  {"lr_schedule", config.schedule.to_string()},
                  {"l2", config.l2},
                  {"seed", config.seed},
                  {"linger", config.linger_seconds},
                  {"step_timeout", config.step_timeout_seconds}}},
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
  const shm::Directory directory(segments);
  for (std::uint32_t shard = 0; shard < segments.config().shards; ++shard) {
    std::uint64_t used = segments.shard_data_offset(), variables = 0;
    for (std::uint32_t position = 0, end = directory.count(); position < end; ++position) {
      if (directory.at(position).shard != shard) continue;
      used = std::max(used, directory.at(position).shard_end);
      ++variables;
    }
    shown["shards"].push_back({{"shard", shard},
                               {"variables", variables},
                               {"used_bytes", used},
                               {"file_bytes", segments.shard(shard).file_bytes()},
                               {"reserved_bytes", segments.shard(shard).header().reserved_bytes}});
  }
  shown["control_bytes"] = info.control_bytes;
  shown["shard_bytes"] = info.shard_bytes;
  shown["gradient_bytes"] = info.gradient_bytes;
  shown["spare_bytes"] = info.spare_bytes;
  return shown;
}

std::string job_as_text(const Json& shown) {
  const Json& decision = shown["decision"];
  std::string text = fmt::format("job {}: {}, ps pid {}, {} old\n", cell(shown["job"]), cell(shown["state"]),
                                 cell(shown["ps_pid"]), age_as_text(shown["age_seconds"]));
  text += fmt::format("global step {}{}{}\n", cell(shown["global_step"]), shown["finished"] ? ", finished" : "",
                      shown["ended"] ? ", told to end" : "");
  text += fmt::format("decision word {:#x}: {}\n", decision["word"].get<std::uint64_t>(),
                      decision["step"].is_null()
                          ? "none yet"
                          : fmt::format("step {} by rank {}", cell(decision["step"]), cell(decision["proposer"])));
  text += "settings\n";
  for (const auto& [key, value] : shown["settings"].items()) text += fmt::format("  {:<13} {}\n", key, cell(value));
  text += "segments\n";
  for (const Json& segment : shown["segments"])
    text += fmt::format("  {:<24} {:>12}\n", cell(segment["name"]), bytes_as_text(segment["bytes"]));
  text += "shards\n";
  for (const Json& shard : shown["shards"])
    text += fmt::format("  {}: {} variables, {} in use of {}, may grow to {}\n", cell(shard["shard"]),
                        cell(shard["variables"]), bytes_as_text(shard["used_bytes"]),
                        bytes_as_text(shard["file_bytes"]), bytes_as_text(shard["reserved_bytes"]));
  return text + fmt::format("spare buffers {}, gradient segments {}\n", bytes_as_text(shown["spare_bytes"]),
                            bytes_as_text(shown["gradient_bytes"]));
}

Json list_variables(const std::string& job) {
  Json all = Json::array();
  for (const VariableInfo& variable : JobView(job).variables())
    all.push_back({{"name", variable.name},
                   {"dtype", to_string(variable.dtype)},
                   {"shape", variable.shape},
                   {"rule", to_string(variable.rule)},
                   {"layout", to_string(variable.layout)},
                   {"element_count", variable.element_count},
                   {"bytes", variable.bytes},
                   {"pieces", variable.pieces},
                   {"piece_elements", variable.piece_elements},
                   {"shard", variable.shard},
                   {"updates", variable.updates},
                   {"initialised", variable.initialised}});
  return {{"job", job}, {"variables", std::move(all)}};
}

std::string variables_as_text(const Json& listed) {
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "DTYPE", "SHAPE", "RULE", "LAYOUT", "ELEMENTS", "SIZE", "PIECES", "SHARD", "UPDATES", "STATE"}};
  for (const Json& row : listed["variables"])
    rows.push_back({cell(row["name"]), cell(row["dtype"]), row["shape"].dump(), cell(row["rule"]), cell(row["layout"]),
                    cell(row["element_count"]), bytes_as_text(row["bytes"]), cell(row["pieces"]), cell(row["shard"]),
                    cell(row["updates"]), row["initialised"] ? "ready" : "NOT INITIALISED"});
  return rows.size() == 1 ? "no variables\n" : table(rows);
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
                   {"examples", worker.examples},
                   {"loss", worker.loss},
                   {"seconds", worker.seconds},
                   {"staleness", staleness_of(worker.staleness)},
                   {"waiting_for", worker.waiting_for.empty() ? Json() : Json(worker.waiting_for)}});
  return {{"job", job}, {"workers", std::move(all)}};
}

std::string workers_as_text(const Json& listed) {
  std::vector<std::vector<std::string>> rows = {{"RANK", "STATE", "PID", "HOLDERS", "STEPS", "PUSHES", "PULLS",
                                                 "RETRIES", "DROPPED", "STALE MEAN", "P99", "MAX", "LOSS",
                                                 "WAITING FOR"}};
  for (const Json& row : listed["workers"]) {
    const Json& staleness = row["staleness"];
    rows.push_back({cell(row["rank"]), cell(row["state"]), cell(row["pid"]), cell(row["holders"]), cell(row["steps"]),
                    cell(row["pushes"]), cell(row["pulls"]),
                    fmt::to_string(row["push_retries"].get<std::uint64_t>() + row["pull_retries"].get<std::uint64_t>()),
                    cell(row["dropped"]), fmt::format("{:.2f}", staleness["mean"].get<double>()),
                    cell(staleness["p99"]), cell(staleness["max"]), cell(row["loss"]), cell(row["waiting_for"])});
  }
  return rows.size() == 1 ? "no worker has joined yet\n" : table(rows);
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

std::string values_as_text(const Json& dumped) {
  constexpr std::size_t kPerLine = 8;
  std::string text;
  for (const Json& row : dumped["variables"]) {
    text += fmt::format("{} {}, {} elements", cell(row["name"]), row["shape"].dump(), cell(row["element_count"]));
    if (!row.contains("values")) {
      text += ": NOT INITIALISED\n";
      continue;
    }
    const std::vector<float> values = row["values"];
    text += fmt::format(": min {}, max {}, mean {}, norm {}", cell(row["min"]), cell(row["max"]), cell(row["mean"]),
                        cell(row["norm"]));
    if (row["nan_count"] != 0) text += fmt::format(", {} of them NaN", cell(row["nan_count"]));
    for (std::size_t i = 0; i < values.size(); ++i)
      text += i % kPerLine == 0 ? fmt::format("\n{:>10}: {:>13}", i, values[i]) : fmt::format(" {:>13}", values[i]);
    text += values.size() < row["element_count"] ? "\n            ... (--limit 0 shows all)\n" : "\n";
  }
  return text.empty() ? "no variables\n" : text;
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

std::string removal_as_text(const Json& removed) {
  return fmt::format("removed job {}: {} segments, {}\n", cell(removed["job"]), removed["removed"].size(),
                     bytes_as_text(removed["bytes"]));
}

}  // namespace ps::inspect
