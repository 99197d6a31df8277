#include "inspect.hpp"

#include "inspect_jobs.hpp"

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

shm::JobSegments attach(const std::string& job) {
  AttachOutcome outcome;
  std::optional<shm::JobSegments> attached = shm::JobSegments::try_attach(job, shm::Access::kReadOnly, outcome);
  if (!attached) throw Error(shm::describe(outcome, shm::control_name(job)));
  return std::move(*attached);
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
          {"partition_by", to_string(config.partition_by)},
          {"partitions", config.partitions},
          {"chunk_bytes", config.chunk_bytes},
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

}  // namespace

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
      {"values", bytes.values},       {"optimizer_slots", bytes.slots},   {"accumulators", bytes.accumulators},
      {"gradients", bytes.gradients}, {"shared_data", bytes.shared_data}, {"spares", bytes.spares},
      {"words", bytes.words},         {"padding", bytes.padding},         {"control", bytes.control},
      {"total", bytes.total()}};
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

}  // namespace ps::inspect
