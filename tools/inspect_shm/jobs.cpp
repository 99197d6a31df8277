// The jobs of this machine: their list, their state, and removal of dead ones.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "cli/option_names.hpp"
#include "inspect_shm/findings.hpp"
#include "inspect_shm/inspect.hpp"
#include "inspect_shm/jobs.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "report/devices.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/segment/memory_policy.hpp"

namespace ps_shm::inspect {
namespace {

using shm::AttachOutcome;

// Names of every job in /dev/shm; a job whose control segment is gone may have some left.
std::map<std::string, std::vector<std::string>> names_by_job() {
  std::map<std::string, std::vector<std::string>> jobs;
  for (const std::string& name : shm::list_segments(shm::kJobPrefix)) {
    const std::string job = shm::job_of(name);
    if (is_job_name(job)) jobs[job].push_back(name);
  }
  return jobs;
}

// Reports that another user's files cannot be removed from /dev/shm.
void check_removed(const std::string& job, const std::vector<std::string>& names) {
  const std::vector<std::string> left = shm::list_segments(shm::control_name(job));
  if (std::find(left.begin(), left.end(), shm::control_name(job)) != left.end())
    return;  // a new job has taken the name
  for (const std::string& name : names)
    if (std::find(left.begin(), left.end(), name) != left.end())
      throw Error(fmt::format(
          "cannot remove /dev/shm/{}: it belongs to another user, or is not a regular file; remove it by hand", name));
}

// The processes of a live job that its owner has to end, in one line.
std::string why_alive(const std::string& job) {
  std::vector<std::string> living;
  try {
    if (const std::optional<JobView> view = JobView::try_open(job)) {
      if (const JobInfo info = view->info(); info.served) living.push_back(fmt::format("its ps (pid {})", info.ps_pid));
      for (const WorkerInfo& worker : view->workers())
        if (worker.state == WorkerState::kAlive)
          living.push_back(fmt::format("worker {} (pid {})", worker.rank, worker.pid));
    }
  } catch (const Error&) {  // unreadable: only its locks show that it is alive
  }
  if (living.empty()) living.push_back(fmt::format("the processes that have /dev/shm/{} open", shm::control_name(job)));
  return fmt::format("job '{}' is alive; first end {}", job, fmt::join(living, ", "));
}

// Takes the job's name and all its locks, so that no process can use or create it meanwhile, and removes what begins
// with it. The name may be missing, or lead to anything.
void remove_by_force(const std::string& job) {
  const std::string name = shm::control_name(job);
  shm::Segment control;
  const AttachOutcome outcome = open_any(control, name, shm::Access::kReadWrite);
  if (outcome == AttachOutcome::kNoPermission) throw shm::attach_error(outcome, name);
  if (control.descriptor() < 0) {
    if (outcome != AttachOutcome::kAbsent && !shm::unlink_segment(name))  // a link, which was never a job
      throw shm::attach_error(outcome, name);
    control = shm::Segment::create(shm::SegmentKind::kControl, 0, job, 0, shm::kPage, shm::kPage);
  }
  if (!shm::TaskLocks(control.descriptor()).try_take_all()) throw Error(why_alive(job));
  if (!control.is_named(name) && !control.link(name))
    throw Error(
        fmt::format("/dev/shm/{} has changed meanwhile, or cannot be removed; check with inspect_shm ls", name));
  for (const std::string& part : shm::list_segments(name + ".")) shm::unlink_segment(part);
  if (shm::remove_job(job, control.descriptor()) != shm::RemoveOutcome::kRemoved) throw Error(why_alive(job));
}

Json limit_of(int which) {
  rlimit limit;
  return getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ? Json() : Json(limit.rlim_cur);
}

// Limits of this machine for jobs.
Json examine_system() {
  return {{"shm_bytes", shm::shm_capacity_bytes()},      {"shm_free_bytes", shm::shm_free_bytes()},
          {"processors", sysconf(_SC_NPROCESSORS_ONLN)}, {"memory_nodes", shm::memory_nodes().size()},
          {"no_huge_pages", shm::why_no_huge_pages()},   {"open_files_limit", limit_of(RLIMIT_NOFILE)},
          {"address_space_limit", limit_of(RLIMIT_AS)},  {"locked_memory_limit", limit_of(RLIMIT_MEMLOCK)}};
}

// Whether it is unused and not kept on purpose.
bool is_reclaimable(const Json& row) {
  static const std::set<std::string> kGone = {"dead",    "half-made",     "leftover",
                                              "damaged", "other version", "other build"};
  return kGone.count(row["state"].get<std::string>()) != 0 && !row["kept"].get<bool>() && !row["held"].get<bool>();
}

// The last state of a job: its step, live processes, and the consistency of its buffers.
Json examine_job(const std::string& job, const std::vector<std::string>& names) {
  shm::Segment control;
  const AttachOutcome outcome = open_any(control, shm::control_name(job));
  Json row = {
      {"job", job},
      {"state", state_of(control, outcome)},
      {"held", control.descriptor() >= 0 && shm::TaskLocks(control.descriptor()).is_any_held_by_other()},
      {"kept", false},
      {"bytes", bytes_of(names)},
      {"segments", names},
      {"age_seconds", outcome == AttachOutcome::kReady ? Json(age_seconds(control.header().created_unix_ns)) : Json()},
      {"last", nullptr},
      {"problem", nullptr}};
  if (outcome != AttachOutcome::kReady) return row;
  try {
    const std::optional<JobView> view = JobView::try_open(job);
    if (!view) return row;
    const JobInfo info = view->info();
    row["kept"] = info.kept;
    int alive = 0, dead = 0, left = 0;
    for (const WorkerInfo& worker : view->workers()) {
      alive += worker.state == WorkerState::kAlive;
      dead += worker.state == WorkerState::kDead;
      left += worker.state == WorkerState::kLeft;
    }
    const BufferCount buffers = view->buffers();
    row["last"] = {{"global_step", info.global_step},
                   {"steps", info.config.steps},
                   {"finished", info.finished},
                   {"ps_pid", info.ps_pid},
                   {"servers", info.servers},
                   {"workers_alive", alive},
                   {"workers_dead", dead},
                   {"workers_left", left},
                   {"buffers", buffers.buffers},
                   {"buffers_in_doubt", buffers.in_doubt}};
    if (alive == 0 && (buffers.lost != 0 || buffers.shared != 0))  // otherwise pushes are in progress
      row["problem"] = fmt::format("{} buffers have no owner and {} have two", buffers.lost, buffers.shared);
    if (state_of(control, outcome) != "dead") return row;  // find_job_faults() looks at the tables of others
    for (const TableInfo& table : view->tables())
      if (const TableCensus rows = view->count_rows(table.spec.name); !rows.faults.empty())
        row["problem"] = fmt::format("table {} is damaged: {}", table.spec.name, rows.faults.front());
  } catch (const Error& error) {
    row["state"] = "damaged";
    row["problem"] = tools::with_option_names(error.what());
  }
  return row;
}

}  // namespace

AttachOutcome open_any(shm::Segment& segment, const std::string& name, shm::Access access) {
  try {
    return segment.open(name, access, shm::kTrustAnybody);
  } catch (const Error&) {
    return AttachOutcome::kDamaged;  // its header requires more than can be mapped
  }
}

std::vector<std::string> job_names() {
  std::vector<std::string> names;
  for (const auto& [job, segments] : names_by_job()) names.push_back(job);
  return names;
}

bool is_job_name(const std::string& name) {
  try {
    check_job_name(name);
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::string folder_among(const std::vector<std::string>& names) {
  const auto is_folder = [](const std::string& name) {
    std::error_code failed;
    return std::filesystem::symlink_status("/dev/shm/" + name, failed).type() == std::filesystem::file_type::directory;
  };
  const auto found = std::find_if(names.begin(), names.end(), is_folder);
  return found == names.end() ? std::string() : *found;
}

std::uint64_t bytes_of(const std::vector<std::string>& names) {
  std::uint64_t bytes = 0;
  for (const std::string& name : names) {
    shm::Segment segment;
    open_any(segment, name);
    // A table's file has its full length from the beginning, and gets memory as rows come.
    const bool has_holes =
        segment.is_mapped() && segment.header().kind == static_cast<std::uint32_t>(shm::SegmentKind::kTable);
    bytes += has_holes ? segment.allocated_bytes() : segment.file_bytes();
  }
  return bytes;
}

std::string state_of(const shm::Segment& control, AttachOutcome outcome) {
  const shm::TaskLocks locks(control.descriptor());
  const bool held = control.descriptor() >= 0 && locks.is_any_held_by_other();
  switch (outcome) {
    case AttachOutcome::kAbsent:
      return "leftover";
    case AttachOutcome::kShardMissing:  // applies to complete jobs, never to one segment
    case AttachOutcome::kBeingCreated:
      return held ? "being created" : "half-made";
    case AttachOutcome::kOtherVersion:
      return "other version";
    case AttachOutcome::kOtherBuild:
      return "other build";
    case AttachOutcome::kDamaged:
      return "damaged";
    case AttachOutcome::kExposed:
      return "exposed";
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

std::string only_job() {
  const std::vector<std::string> names = job_names();
  if (names.empty())
    throw Error("there is no job on this machine; start one with launch_shm or ps_shm", ErrorCode::kNotFound);
  if (names.size() == 1) return names.front();
  throw Error(fmt::format("there are {} jobs; choose one with --job: {}", names.size(), fmt::join(names, ", ")));
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
  Json found = {{"jobs", std::move(all)}, {"publications", Json::array()}};
  const Json listed = list_publications("");
  for (const Json& row : listed["publications"])
    found["publications"].push_back({{"publication", row["publication"]},
                                     {"state", row["state"]},
                                     {"pid", row["pid"]},
                                     {"generation", row["generation"]},
                                     {"subscribers", row["subscribers"].size()},
                                     {"bytes", row["bytes"]},
                                     {"age_seconds", row["age_seconds"]}});
  return found;
}

Json remove(const std::string& job, bool force) {
  check_job_name(job);
  const auto jobs = names_by_job();
  const auto found = jobs.find(job);
  if (found == jobs.end())
    throw shm::attach_error(shm::AttachOutcome::kAbsent, shm::control_name(job));
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
    throw shm::attach_error(outcome, shm::control_name(job));
  switch (shm::remove_job(job, -1, {}, shm::kTrustAnybody)) {
    case shm::RemoveOutcome::kRemoved:
      return removed;
    case shm::RemoveOutcome::kAlive:
      throw Error(why_alive(job));
    case shm::RemoveOutcome::kAbsent:
      break;
  }
  throw Error(fmt::format("job '{}' was removed by another process meanwhile", job));
}

Json remove_dead() {
  const Json examined = examine("", true);
  return {{"removed", examined["removed"]}, {"failed", examined["failed"]}};
}

Json examine(const std::string& only, bool repair) {
  if (!only.empty()) check_job_name(only);
  Json found = {{"system", examine_system()},
                {"cuda", report::to_json(device::probe_gpus(device::cuda_calls()))},
                {"jobs", Json::array()},
                {"removed", Json::array()},
                {"failed", Json::array()}};
  for (const auto& [job, names] : names_by_job()) {
    if (!only.empty() && job != only) continue;
    Json row = examine_job(job, names);
    row["reclaimable"] = is_reclaimable(row) && folder_among(names).empty();
    if (repair && row["reclaimable"]) try {
        remove_by_force(job);  // takes all its locks first: a job that has become live meanwhile is not touched
        check_removed(job, names);
        found["removed"].push_back({{"job", job}, {"bytes", row["bytes"]}});
        continue;
      } catch (const Error& error) {
        found["failed"].push_back({{"job", job}, {"why", tools::with_option_names(error.what())}});
      }
    found["jobs"].push_back(std::move(row));
  }
  if (only.empty()) examine_publications(repair, found);
  found["findings"] = Json::array();
  found["advice"] = Json::array();
  find_machine_faults(only, found);
  find_job_faults(found);
  const auto concerns_it = [&](const Json& finding) { return finding["job"] == only; };
  if (!only.empty() && found["jobs"].empty() && found["removed"].empty() &&
      std::none_of(found["findings"].begin(), found["findings"].end(), concerns_it))
    throw shm::attach_error(AttachOutcome::kAbsent, shm::control_name(only));
  return found;
}

}  // namespace ps_shm::inspect
