// A job's settings as JSON, and changes of the runtime settings.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "config/job_settings.hpp"
#include "config/values.hpp"
#include "inspect_shm/inspect.hpp"
#include "inspect_shm/settings.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_control.hpp"

namespace ps_shm::inspect {
namespace {

// Parses KEY=VALUE into `config`. Throws BadUsage if it cannot be parsed; validity is checked later.
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
  throw BadUsage(fmt::format("'{}' cannot be set; these settings can, each as KEY=VALUE: {}", key, live_names()));
}

Json as_json(const config::Setting<JobConfig>& setting, const JobConfig& config) {
  const std::string text = show(setting, config);
  switch (setting.value.kind) {
    case config::Kind::kNumber:
      if (text == "none") return nullptr;
      return Json::accept(text) ? Json::parse(text) : Json(text);  // or a word that stands for one
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
  return setting.value.form.starts_with("TIME") ? key + "_seconds" : key;
}

}  // namespace

Json live_json(const LiveSettings& live) {
  const JobConfig config = config::with_live({}, live);
  Json all = Json::object();
  for (const config::Setting<JobConfig>& setting : config::job_settings())
    if (setting.traits.is_live) all[key_of(setting)] = as_json(setting, config);
  return all;
}

Json settings_of(const JobConfig& config) {
  Json all = Json::object();
  for (const config::Setting<JobConfig>& setting : config::job_settings())
    if (setting.traits.is_stored) all[key_of(setting)] = as_json(setting, config);
  return all;
}

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

}  // namespace ps_shm::inspect
