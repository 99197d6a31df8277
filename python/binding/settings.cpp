#include "settings.hpp"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <span>

#include "config/job_settings.hpp"
#include "config/spelling.hpp"
#include "config/values.hpp"
#include "errors.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "update/traits.hpp"

namespace ps_shm::python {
namespace nb = nanobind;
namespace {

std::string key_of(const config::Setting<JobConfig>& row) {
  std::string key = row.name;
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

// The value as text, as it would be given on a command line.
std::string text_of(const config::Setting<JobConfig>& row, nb::handle value) {
  if (PyBool_Check(value.ptr())) return nb::cast<bool>(value) ? "true" : "false";
  if (!nb::isinstance<nb::dict>(value)) return nb::str(value).c_str();
  if (row.value.kind != config::Kind::kPairs) throw nb::type_error(fmt::format("{} is no dict", key_of(row)).c_str());
  std::string texts;
  for (const auto& [name, number] : nb::borrow<nb::dict>(value))
    texts += fmt::format("{}{}={}", texts.empty() ? "" : ",", nb::str(name).c_str(), nb::str(number).c_str());
  return texts;
}

// The value as alter() takes it: None stands for what is not given.
nb::object value_of(const config::Setting<JobConfig>& row, const JobConfig& config) {
  const std::string text = row.value.write(config);
  if (row.value.kind == config::Kind::kFlag) return nb::bool_(!text.empty());
  if (row.value.kind == config::Kind::kPairs) {
    nb::dict pairs;
    if (!text.empty())
      config::for_each_text(text, [&](const std::string& pair) {
        const auto equals = pair.rfind('=');
        pairs[nb::cast(pair.substr(0, equals))] = nb::int_(nb::cast(pair.substr(equals + 1)));
      });
    return pairs;
  }
  if (text.empty() || text == "none") return nb::none();
  if (row.value.kind == config::Kind::kWord) return nb::cast(text);
  if (text.find_first_not_of("0123456789.e+-") != std::string::npos) return nb::cast(text);  // a word for a number
  const bool is_real = row.value.form.starts_with("X") || row.value.form.starts_with("TIME");
  return is_real ? nb::object(nb::float_(nb::cast(text))) : nb::object(nb::int_(nb::cast(text)));
}

// "; did you mean A, B or C?", the nearest of `known`, or empty.
std::string nearest_of(const std::string& key, std::vector<std::string> known) {
  // What other libraries call it, which is what it means: lr.
  std::string words = key + " ";
  std::replace(words.begin(), words.end(), '_', ' ');
  for (const config::Setting<JobConfig>& row : config::job_settings())
    if (row.meaning.starts_with(words) && std::find(known.begin(), known.end(), key_of(row)) != known.end())
      return fmt::format("; did you mean {}?", key_of(row));
  constexpr std::size_t kMost = 3;
  std::vector<std::string> near;
  for (std::string one; near.size() < kMost && !(one = config::nearest(key, known)).empty();) {
    std::erase(known, one);
    near.push_back(one);
  }
  if (near.empty()) return {};
  const std::string last = near.back();
  near.pop_back();
  return fmt::format("; did you mean {}{}{}?", fmt::join(near, ", "), near.empty() ? "" : " or ", last);
}

void alter(JobConfig& config, const nb::dict& settings, bool live) {
  std::vector<std::string> known;
  for (const config::Setting<JobConfig>& row : config::job_settings())
    if (std::string_view(row.name) != "job" && (live ? row.traits.is_live : row.programs != config::kNone))
      known.push_back(key_of(row));
  for (const auto& [name, value] : settings) {
    const std::string key = nb::str(name).c_str();
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw nb::type_error(fmt::format("there is no setting '{}'{}; what there is: {}", key,
                                       nearest_of(key, known), fmt::join(known, ", "))
                               .c_str());
    if (value.is_none()) continue;
    for (const config::Setting<JobConfig>& row : config::job_settings())
      if (key == key_of(row)) config::read(row, config, text_of(row, value));
  }
}

// Throws Error if a hyper-parameter is given that neither the optimizer's rule has nor the default one of rows.
void check_hyper_parameters(const Optimizer& optimizer, const nb::dict& given) {
  const auto has = [](UpdateRule rule, float Optimizer::*member) {
    const auto& all = update::traits_of(rule).hyper_parameters;
    return std::any_of(std::begin(all), std::end(all), [&](const auto& one) { return one.from == member; });
  };
  for (const config::Setting<JobConfig>& row : config::job_settings()) {
    float Optimizer::*const member = row.traits.hyper_parameter;
    const nb::object key = nb::cast(key_of(row));
    if (member == nullptr || !given.contains(key) || given[key].is_none()) continue;
    if (has(optimizer.rule, member) || has(UpdateRule::kRowwiseAdagrad, member)) continue;
    throw Error(fmt::format("`{}`: optimizer {} has none", row.name, to_string(optimizer.rule)));
  }
}

}  // namespace

void alter(JobConfig& config, const nb::dict& settings) {
  alter(config, settings, false);
  check_hyper_parameters(config.optimizer, settings);
}

void alter(LiveSettings& live, const JobConfig& of, const nb::dict& settings) {
  JobConfig config = config::with_live(of, live);
  alter(config, settings, true);
  live = config::live_of(config);
}

void check_given(const JobConfig& job, const nb::dict& settings) {
  JobConfig wanted = job;
  alter(wanted, settings);
  for (const config::Setting<JobConfig>& row : config::job_settings())
    if (const std::string there = config::show(row, job), given = config::show(row, wanted); there != given)
      throw Error(fmt::format("job '{}' began with `{}` {}, and {} is given: leave it out, or give what the job has",
                              job.job, row.name, there, given),
                  ErrorCode::kIncompatible);
}

nb::dict as_dict(const JobConfig& config) {
  nb::dict all;
  for (const config::Setting<JobConfig>& row : config::job_settings())
    all[nb::cast(key_of(row))] = value_of(row, config);
  return all;
}

std::string runtime_settings_help() {
  std::string text;
  for (const config::Setting<JobConfig>& row : config::job_settings())
    if (row.traits.is_live) text += fmt::format("    {}: {}\n", key_of(row), row.meaning);
  return text;
}

nb::dict live_dict(const LiveSettings& live) {
  nb::dict all;
  const JobConfig config = config::with_live({}, live);
  for (const config::Setting<JobConfig>& row : config::job_settings())
    if (row.traits.is_live) all[nb::cast(key_of(row))] = value_of(row, config);
  return all;
}

std::vector<std::uint64_t> shape_in_job(const std::string& job, const std::string& variable) {
  std::vector<std::string> names;
  for (const VariableInfo& one : JobView(job).variables()) {
    if (one.name == variable) return one.shape;
    names.push_back(one.name);
  }
  fail_not_found(fmt::format("job '{}'", job), "variable", variable, names);
}

}  // namespace ps_shm::python
