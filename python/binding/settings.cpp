#include "settings.hpp"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "config/job_settings.hpp"
#include "config/spelling.hpp"
#include "ps/errors.hpp"
#include "ps/job_view.hpp"
#include "update/traits.hpp"

namespace ps::python {
namespace nb = nanobind;
namespace {

std::string key_of(const config::Setting<JobConfig>& row) {
  std::string key = row.name;
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

// As it would be given on a command line.
std::string text_of(const config::Setting<JobConfig>& row, nb::handle value) {
  if (PyBool_Check(value.ptr())) return nb::cast<bool>(value) ? "true" : "false";
  if (!nb::isinstance<nb::dict>(value)) return nb::str(value).c_str();
  if (row.value.kind != config::Kind::kPairs) throw nb::type_error(fmt::format("{} is no dict", key_of(row)).c_str());
  std::string texts;
  for (const auto& [name, number] : nb::borrow<nb::dict>(value))
    texts += fmt::format("{}{}={}", texts.empty() ? "" : ",", nb::str(name).c_str(), nb::str(number).c_str());
  return texts;
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
                                       config::did_you_mean(key, known), fmt::join(known, ", "))
                               .c_str());
    if (value.is_none()) continue;
    for (const config::Setting<JobConfig>& row : config::job_settings())
      if (key == key_of(row)) config::read(row, config, text_of(row, value));
  }
}

// Throws Error for a given setting of update rules that this one has not.
void check_hyper_parameters(const Optimizer& optimizer, const nb::dict& given) {
  const auto& all = update::traits_of(optimizer.rule).hyper_parameters;
  for (const config::Setting<JobConfig>& row : config::job_settings()) {
    float Optimizer::*const member = row.traits.hyper_parameter;
    const nb::object key = nb::cast(key_of(row));
    if (member == nullptr || !given.contains(key) || given[key].is_none()) continue;
    if (std::any_of(std::begin(all), std::end(all), [&](const auto& one) { return one.from == member; })) continue;
    throw Error(fmt::format("`{}`: optimizer {} has none", row.name, to_string(optimizer.rule)));
  }
}

// The value of a word among those that an enumeration has. Throws Error where it is none.
template <class Enum>
Enum word(const std::string& name, std::initializer_list<Enum> all, const char* setting) {
  std::vector<std::string> names;
  for (const Enum one : all) names.emplace_back(to_string(one));
  const std::string& chosen = config::choose(setting, name, names);
  return *std::find_if(all.begin(), all.end(), [&](const Enum one) { return chosen == to_string(one); });
}

}  // namespace

UpdateRule rule_of(const std::string& name) {
  using R = UpdateRule;
  return word(name,
              {R::kAdd, R::kSgd, R::kMomentum, R::kNesterov, R::kAdagrad, R::kRmsProp, R::kAdam, R::kAdamW, R::kFtrl,
               R::kRowwiseAdagrad},
              "rule");
}

Layout layout_of(const std::string& name) { return word(name, {Layout::kVersioned, Layout::kInplace}, "layout"); }

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
                              job.job, row.name, there, given));
}

nb::dict as_dict(const JobConfig& config) {
  nb::dict all;
  for (const config::Setting<JobConfig>& row : config::job_settings())
    all[nb::cast(key_of(row))] = nb::cast(config::show(row, config));
  return all;
}

nb::dict live_dict(const LiveSettings& live) {
  nb::dict all;
  const JobConfig config = config::with_live({}, live);
  for (const config::Setting<JobConfig>& row : config::job_settings())
    if (row.traits.is_live) all[nb::cast(key_of(row))] = nb::cast(config::show(row, config));
  return all;
}

std::vector<std::uint64_t> shape_in_job(const std::string& job, const std::string& variable) {
  for (const VariableInfo& one : JobView(job).variables())
    if (one.name == variable) return one.shape;
  throw Error(fmt::format("job '{}' has no variable '{}'", job, variable));
}

}  // namespace ps::python
