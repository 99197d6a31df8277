#include "inspect_shm/inspect.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "config/spelling.hpp"
#include "inspect_shm/bridge.hpp"
#include "inspect_shm/jobs.hpp"
#include "inspect_shm/settings.hpp"
#include "inspection/texts.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "report/figures.hpp"
#include "shm/base/process_state.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/steps/barrier.hpp"

namespace ps_shm::inspect {
namespace {

using shm::AttachOutcome;

shm::JobSegments attach(const std::string& job) {
  AttachOutcome outcome;
  std::optional<shm::JobSegments> attached =
      shm::JobSegments::try_attach(job, shm::Access::kReadOnly, outcome, shm::kTrustAnybody);
  if (!attached) throw shm::attach_error(outcome, shm::control_name(job));
  return std::move(*attached);
}

// The header of a control segment of another layout version; its first fields are the same in all versions. Empty for
// other segments.
std::optional<Json> show_header(const std::string& job) {
  shm::Segment control;
  const AttachOutcome outcome = control.open(shm::control_name(job), shm::Access::kReadOnly, shm::kTrustAnybody);
  if (outcome != AttachOutcome::kOtherVersion && outcome != AttachOutcome::kOtherBuild) return std::nullopt;
  std::array<std::byte, sizeof(shm::HeaderShm)> bytes{};
  if (pread(control.descriptor(), bytes.data(), bytes.size(), 0) != ssize_t(bytes.size())) return std::nullopt;
  const auto at = [&](auto value, std::size_t offset) {
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
  };
  const auto created = at(std::uint64_t{}, offsetof(shm::HeaderShm, created_unix_ns));
  return Json{{"job", job},
              {"state", state_of(control, outcome)},
              {"header",
               {{"layout_version", at(std::uint32_t{}, offsetof(shm::HeaderShm, layout_version))},
                {"known_layout_version", shm::kLayoutVersion},
                {"fingerprint", fmt::format("{:016x}", at(std::uint64_t{}, offsetof(shm::HeaderShm, fingerprint)))},
                {"instance", fmt::format("{:016x}", at(std::uint64_t{}, offsetof(shm::HeaderShm, instance)))},
                {"creator_pid", at(std::uint32_t{}, offsetof(shm::HeaderShm, creator_pid))},
                {"age_seconds", age_seconds(created)},
                {"initial_bytes", at(std::uint64_t{}, offsetof(shm::HeaderShm, initial_bytes))},
                {"reserved_bytes", at(std::uint64_t{}, offsetof(shm::HeaderShm, reserved_bytes))}}}};
}

Json bridge_json(const std::optional<BridgeInfo>& bridge) {
  return bridge && !bridge->error.empty() ? Json{{"error", bridge->error}} : report::figures_json(bridge);
}

}  // namespace

Json show_job(const std::string& job) {
  check_job_name(job);
  if (std::optional<Json> header = show_header(job)) return *header;
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
                {"live", live_json(info.live)},
                {"live_version", info.live_version},
                {"global_step", info.global_step},
                {"finished", info.finished},
                {"ended", segments.state().ended.load_acquire() != 0}};
  // From the barrier of training steps: the last step whose contributors are decided, and the rank that proposed them.
  const std::uint64_t decision = segments.barrier(0).decision.load_acquire();
  shown["decision"] = {{"word", decision}, {"step", nullptr}, {"proposer", nullptr}};
  if (const std::uint64_t rounds = shm::decided_rounds(decision); rounds != 0)
    shown["decision"]["step"] = rounds - 1, shown["decision"]["proposer"] = shm::proposer_of(decision);
  shown["snapshot"] = {{"epoch", info.snapshots},
                       {"age_seconds", info.snapshots == 0 ? Json() : Json(info.snapshot_age_seconds)},
                       {"held", info.has_snapshot},
                       {"pushes_wait", info.is_pausing_pushes}};
  shown["bridge"] = bridge_json(bridge_of(job, info.instance));
  shown["segments"] = Json::array();
  std::vector<std::string> names = shm::list_segments(shm::control_name(job) + ".");
  names.insert(names.begin(), shm::control_name(job));
  for (const std::string& name : names) shown["segments"].push_back({{"name", name}, {"bytes", bytes_of({name})}});
  shown["shards"] = Json::array();
  for (std::size_t shard = 0; shard < info.tasks.size(); ++shard) {
    shown["shards"].push_back({{"shard", shard}});
    shown["shards"].back().update(report::figures_json(info.tasks[shard]));
  }
  shown["bytes"] = report::figures_json(info.bytes);
  shown["bytes"]["total"] = info.bytes.total();
  return shown;
}

Json list_variables(const std::string& job) {
  const JobView view(job);
  Json tables = Json::array();
  for (const TableInfo& table : view.tables()) tables.push_back(facts_of(table));
  return {{"job", job}, {"variables", report::figures_json(view.variables())}, {"tables", std::move(tables)}};
}

namespace {

void check_kind(const std::string& kind) {
  const std::vector<std::string> known = event_kinds();
  if (kind.empty() || std::find(known.begin(), known.end(), kind) != known.end()) return;
  throw BadUsage(fmt::format("--kind: there are no events of kind '{}'; the kinds are {}{}", kind,
                             fmt::join(known, ", "), config::did_you_mean(kind, known)));
}

Json events_of(const JobView& view, const std::string& kind) {
  Json all = Json::array();
  for (const Event& event : view.events()) {
    if (!kind.empty() && event.kind != kind) continue;
    all.push_back({{"unix_ns", event.unix_ns},
                   {"kind", event.kind},
                   {"rank", event.rank ? Json(*event.rank) : Json()},
                   {"step", event.step},
                   {"ranks", event.ranks},
                   {"text", event.text}});
  }
  return all;
}

}  // namespace

Json list_events(const std::string& job, const std::string& kind) {
  check_kind(kind);
  return {{"job", job}, {"events", events_of(JobView(job), kind)}};
}

void follow_events(const std::string& job, const std::string& kind, const std::function<void(const Json&)>& use) {
  constexpr auto kPause = std::chrono::milliseconds(50);  // for human readers
  check_kind(kind);
  const JobView view(job);
  const shm::JobSegments segments = attach(job);
  std::set<std::string> known;
  for (bool is_last = false;; std::this_thread::sleep_for(kPause)) {
    // In this order, so that what happens before the last process leaves is still printed.
    is_last = segments.control().is_orphaned() || !segments.locks().is_in_use_by_other();
    std::set<std::string> seen;
    const Json events = events_of(view, kind);
    for (const Json& event : events) {
      const auto [text, is_first] = seen.insert(event.dump(-1, ' ', false, Json::error_handler_t::replace));
      if (is_first && known.count(*text) == 0) use(event);
    }
    known = std::move(seen);  // a ring: overwritten events do not come back
    if (is_last) return;
  }
}

Json list_uninitialised(const std::string& job) {
  Json names = Json::array();
  for (const VariableInfo& variable : JobView(job).variables())
    if (!variable.initialised) names.push_back(variable.name);
  return {{"job", job}, {"uninitialised", std::move(names)}};
}

Json list_placement(const std::string& job) {
  const JobView view(job);
  const std::vector<TaskInfo> tasks = view.info().tasks;
  Json all = Json::array();
  for (const VariableInfo& variable : view.variables())
    for (std::size_t part = 0; part < variable.parts.size(); ++part) {
      const PartInfo& where = variable.parts[part];
      const TaskInfo& task = tasks.at(where.shard);
      all.push_back({{"name", variable.name},
                     {"part", part},
                     {"parts", variable.parts.size()},
                     {"first_row", where.first_row},
                     {"rows", where.rows},
                     {"shard", where.shard},
                     {"segment", shm::shard_name(job, where.shard)},
                     {"served", task.is_alive},
                     {"ps_pid", task.is_alive ? Json(task.pid) : Json()},
                     {"node", report::figures_json(inspection::node_of(where.node))},
                     {"offset", where.offset},
                     {"bytes", where.bytes},
                     {"slot_bytes", where.slot_bytes}});
    }
  return {{"job", job}, {"placement", std::move(all)}};
}

Json list_workers(const std::string& job) {
  Json all = Json::array();
  const std::vector<WorkerInfo> workers = JobView(job).workers();
  const std::vector<shm::LockHolder> holders = shm::lock_holders(attach(job).control().descriptor());
  for (const WorkerInfo& worker : workers) {
    const auto process = shm::holder_of(holders, shm::kRankByte + worker.rank);
    const bool is_stopped = worker.state == WorkerState::kAlive && process && shm::is_stopped(*process);
    all.push_back(report::figures_json(worker));
    if (is_stopped) all.back()["state"] = "stopped", all.back()["waiting_for"] = nullptr;
  }
  return {{"job", job}, {"workers", std::move(all)}};
}

}  // namespace ps_shm::inspect
