#include "inspect.hpp"

#include "inspect_jobs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "config/job_settings.hpp"
#include "config/values.hpp"
#include "keep/half.hpp"
#include "keep/tensor_files.hpp"
#include "ps/errors.hpp"
#include "ps/job_control.hpp"
#include "ps/job_view.hpp"
#include "shm/barrier.hpp"
#include "shm/job_segments.hpp"

namespace ps::inspect {
namespace {

using shm::AttachOutcome;

shm::JobSegments attach(const std::string& job) {
  AttachOutcome outcome;
  std::optional<shm::JobSegments> attached =
      shm::JobSegments::try_attach(job, shm::Access::kReadOnly, outcome, shm::kTrustAnybody);
  if (!attached) throw Error(shm::describe(outcome, shm::control_name(job)));
  return std::move(*attached);
}

// KEY=VALUE into `config`. Throws BadUsage where it can't be read; whether it is possible is checked later.
void read_change(const std::string& text, JobConfig& config) {
  const auto equals = text.find('=');
  const std::string key = text.substr(0, equals), value = equals == std::string::npos ? "" : text.substr(equals + 1);
  for (const config::Setting<JobConfig>& setting : config::job_settings()) {
    if (!setting.traits.is_live || key != setting.name) continue;
    try {
      return read(setting, config, value);
    } catch (const Error& error) {
      throw BadUsage(error.what());
    }
  }
  throw BadUsage(fmt::format("'{}' cannot be set; what can be: {}, each as KEY=VALUE", key, live_names()));
}

Json node_of(int node) { return node < 0 ? Json() : Json(node); }

Json as_json(const config::Setting<JobConfig>& setting, const JobConfig& config) {
  const std::string text = show(setting, config);
  switch (setting.value.kind) {
    case config::Kind::kNumber:
      return Json::parse(text);
    case config::Kind::kFlag:
      return text == "on";
    case config::Kind::kWord:
      return text;
    case config::Kind::kPairs:
      break;
  }
  Json pairs = Json::object();
  if (const std::string given = setting.value.write(config); !given.empty())
    config::for_each_text(given, [&](const std::string& pair) {
      const auto equals = pair.rfind('=');
      pairs[pair.substr(0, equals)] = Json::parse(pair.substr(equals + 1));
    });
  return pairs;
}

std::string key_of(const config::Setting<JobConfig>& setting) {
  std::string key = setting.name;
  std::replace(key.begin(), key.end(), '-', '_');
  return setting.value.form == "TIME" ? key + "_seconds" : key;
}

// What holds now.
Json live_json(const LiveSettings& live) {
  const JobConfig config = config::with_live({}, live);
  Json all = Json::object();
  for (const config::Setting<JobConfig>& setting : config::job_settings())
    if (setting.traits.is_live) all[key_of(setting)] = as_json(setting, config);
  return all;
}

// What the job began with.
Json settings_of(const JobConfig& config) {
  Json all = Json::object();
  for (const config::Setting<JobConfig>& setting : config::job_settings())
    if (setting.traits.is_stored) all[key_of(setting)] = as_json(setting, config);
  return all;
}

Json staleness_of(const StalenessSummary& staleness) {
  return {{"mean", staleness.mean}, {"p50", staleness.p50}, {"p99", staleness.p99}, {"max", staleness.max}};
}

}  // namespace

std::string live_names() {
  std::vector<std::string> names;
  for (const config::Setting<JobConfig>& setting : config::job_settings())
    if (setting.traits.is_live) names.emplace_back(setting.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

bool is_of_interest(const std::string& key, const Json& value) {
  static const JobConfig kUsual = config::resolved({});
  const config::Settings<JobConfig>& all = config::job_settings();
  const auto row = std::find_if(all.begin(), all.end(), [&](const auto& setting) { return key_of(setting) == key; });
  return row == all.end() || (row->traits.common & config::kPs) != 0 || as_json(*row, kUsual) != value;
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
                {"live", live_json(info.live)},
                {"live_version", info.live_version},
                {"global_step", info.global_step},
                {"finished", info.finished},
                {"ended", segments.state().ended.load_acquire() != 0}};
  // Of the training step's barrier: the last step whose contributors are decided, and the rank that proposed them.
  const std::uint64_t decision = segments.barrier(0).decision.load_acquire();
  shown["decision"] = {{"word", decision}, {"step", nullptr}, {"proposer", nullptr}};
  if (const std::uint64_t rounds = shm::decided_rounds(decision); rounds != 0)
    shown["decision"]["step"] = rounds - 1, shown["decision"]["proposer"] = shm::proposer_of(decision);
  shown["snapshot"] = {{"epoch", info.snapshots},
                       {"age_seconds", info.snapshots == 0 ? Json() : Json(info.snapshot_age_seconds)},
                       {"held", info.has_snapshot},
                       {"pushes_wait", info.is_cutting}};
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
      {"values", bytes.values},     {"optimizer_slots", bytes.slots}, {"accumulators", bytes.accumulators},
      {"reserves", bytes.reserves}, {"gradients", bytes.gradients},   {"shared_data", bytes.shared_data},
      {"spares", bytes.spares},     {"words", bytes.words},           {"padding", bytes.padding},
      {"control", bytes.control},   {"total", bytes.total()}};
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
                   {"training_loss", worker.examples != 0 ? Json(worker.loss) : Json()},
                   {"seconds", worker.seconds},
                   {"staleness", staleness_of(worker.staleness)},
                   {"waiting_for", worker.waiting_for.empty() ? Json() : Json(worker.waiting_for)}});
  return {{"job", job}, {"workers", std::move(all)}};
}

namespace {

// Calls body(value) for each element, a number that has all its digits.
template <class T, class Body>
void for_elements_as(std::span<const std::byte> bytes, Body&& body) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    body(value);
  }
}
template <class Body>
void for_elements(DType dtype, std::span<const std::byte> bytes, Body&& body) {
  switch (dtype) {
    case DType::kFloat32:
      return for_elements_as<float>(bytes, body);
    case DType::kFloat64:
      return for_elements_as<double>(bytes, body);
    case DType::kInt64:
      return for_elements_as<std::int64_t>(bytes, body);
    case DType::kInt32:
      return for_elements_as<std::int32_t>(bytes, body);
    case DType::kInt16:
      return for_elements_as<std::int16_t>(bytes, body);
    case DType::kInt8:
      return for_elements_as<std::int8_t>(bytes, body);
    case DType::kUint64:
      return for_elements_as<std::uint64_t>(bytes, body);
    case DType::kUint32:
      return for_elements_as<std::uint32_t>(bytes, body);
    case DType::kUint16:
      return for_elements_as<std::uint16_t>(bytes, body);
    case DType::kUint8:
    case DType::kBool:
      return for_elements_as<std::uint8_t>(bytes, body);
    case DType::kFloat16:
      return for_elements_as<std::uint16_t>(bytes, [&](std::uint16_t bits) { body(keep::from_float16(bits)); });
    case DType::kBFloat16:
      return for_elements_as<std::uint16_t>(bytes, [&](std::uint16_t bits) { body(keep::from_bfloat16(bits)); });
  }
}

}  // namespace

Json dump_values(const std::string& job, const std::vector<std::string>& names, std::uint64_t limit) {
  const JobView view(job);
  std::vector<VariableInfo> chosen = view.variables();
  if (!names.empty()) {
    for (const std::string& name : names)
      if (std::none_of(chosen.begin(), chosen.end(), [&](const VariableInfo& v) { return v.name == name; }))
        view.bytes(name);  // throws: lists those there are
    std::erase_if(chosen,
                  [&](const VariableInfo& v) { return std::find(names.begin(), names.end(), v.name) == names.end(); });
  }
  Json all = Json::array();
  for (const VariableInfo& variable : chosen) {
    Json row = {{"name", variable.name},
                {"dtype", to_string(variable.dtype)},
                {"shape", variable.shape},
                {"element_count", variable.element_count},
                {"initialised", variable.initialised}};
    if (variable.initialised || !names.empty()) {
      Json values = Json::array();
      double min = std::numeric_limits<double>::infinity(), max = -min, sum = 0, squares = 0;
      std::uint64_t nan_count = 0;
      for_elements(variable.dtype, view.bytes(variable.name), [&](auto element) {
        const auto value = double(element);
        nan_count += std::isnan(value);
        min = std::fmin(min, value), max = std::fmax(max, value);
        sum += value, squares += value * value;
        if (limit == 0 || values.size() < limit) values.push_back(element);
      });
      row.update({{"min", min},
                  {"max", max},
                  {"mean", sum / double(variable.element_count)},
                  {"norm", std::sqrt(squares)},
                  {"nan_count", nan_count}});
      row["values"] = std::move(values);
    }
    all.push_back(std::move(row));
  }
  return {{"job", job}, {"variables", std::move(all)}};
}

Json dump_files(const std::string& job, const std::vector<std::string>& names, const std::string& folder) {
  const JobView view(job);
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) throw Error(fmt::format("cannot make the folder {}: {}", folder, failed.message()));
  for (const std::string& name : names) static_cast<void>(view.bytes(name));  // throws: lists those there are
  Json all = Json::array();
  for (const VariableInfo& variable : view.variables()) {
    if (!variable.initialised ||
        (!names.empty() && std::find(names.begin(), names.end(), variable.name) == names.end()))
      continue;
    std::string stem = variable.name;  // a name may hold what a file's may not
    for (char& c : stem)
      if (c == '/') c = '_';
    stem = fmt::format("{:03}-{}", all.size(), stem);
    const auto write = [&](const std::string& what, DType dtype, std::span<const std::byte> bytes) {
      const std::string file = stem + what + ".npy";
      keep::write_npy(folder + "/" + file, {variable.name, dtype, variable.shape, bytes});
      return file;
    };
    Json row = {{"name", variable.name},
                {"dtype", to_string(variable.dtype)},
                {"shape", variable.shape},
                {"rule", to_string(variable.rule)},
                {"file", write("", variable.dtype, view.bytes(variable.name))},
                {"slots", Json::object()}};
    for (std::size_t slot = 0; slot + variable.row_slots < variable.slots.size(); ++slot) {
      const std::vector<float> values = view.slot(variable.name, slot);
      row["slots"][variable.slots[slot]] =
          write("." + variable.slots[slot], DType::kFloat32, std::as_bytes(std::span(values)));
    }
    all.push_back(std::move(row));
  }
  Json index = {{"job", job}, {"global_step", view.global_step()}, {"variables", std::move(all)}};
  keep::write_text(folder + "/index.json", index.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  index["folder"] = folder;
  return index;
}

Json change_settings(const std::string& job, const std::string& group, const std::vector<std::string>& changes) {
  JobControl control(job, group);
  Json before, after;
  control.change([&](LiveSettings& live) {
    before = live_json(live);
    JobConfig config = config::with_live(control.config(), live);
    for (const std::string& change : changes) read_change(change, config);
    live = config::live_of(config);
    after = live_json(live);
  });
  Json changed = Json::object();
  for (const auto& [key, value] : after.items())
    if (value != before[key]) changed[key] = {{"before", before[key]}, {"after", value}};
  return {{"job", job}, {"changed", std::move(changed)}};
}

}  // namespace ps::inspect
