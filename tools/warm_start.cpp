#include "warm_start.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <regex>
#include <vector>

#include "ps/errors.hpp"
#include "worker_run.hpp"

namespace ps::tools {

WarmStart::WarmStart(const TrainingSettings& training, std::span<const train::ParameterSpec> variables)
    : match_(training.init_match), file_(training.init_from) {
  std::vector<std::string> wrong;
  for (const train::ParameterSpec& variable : variables) {
    if (!matches(variable.name)) continue;
    const auto found = file_.tensors().find(variable.name);
    if (found == file_.tensors().end())
      wrong.push_back(fmt::format("it has no {}", variable.name));
    else if (!std::equal(found->second.shape.begin(), found->second.shape.end(), variable.shape.begin(),
                         variable.shape.end()))
      wrong.push_back(fmt::format("{} is [{}] there and [{}] here", variable.name, fmt::join(found->second.shape, ", "),
                                  fmt::join(variable.shape, ", ")));
    else if (!keep::is_float(found->second.dtype))
      wrong.push_back(fmt::format("{} is of dtype {} there", variable.name, found->second.dtype));
    else
      ++count_;
  }
  if (!wrong.empty()) {
    std::vector<std::string> there;
    for (const auto& [name, tensor] : file_.tensors()) there.push_back(name);
    throw Error(fmt::format("--init-from {} does not fit: {} (it has: {})", file_.path(), fmt::join(wrong, "; "),
                            fmt::join(there, ", ")));
  }
  if (count_ == 0) throw Error(fmt::format("--init-match {}: no variable of the model has a name like that", match_));
}

bool WarmStart::matches(const std::string& name) const {
  return match_.empty() || std::regex_search(name, std::regex(match_));
}

void WarmStart::fill(const std::string& name, std::span<float> values) const {
  if (matches(name)) file_.read(file_.tensors().find(name)->second, values);
}

void begin_with_file(const WorkerSettings& settings, const std::string& who,
                     std::span<const train::ParameterSpec> variables, train::TrainHooks& hooks) {
  if (settings.training.init_from.empty()) return;
  const auto start = std::make_shared<const WarmStart>(settings.training, variables);
  hooks.first_values = [=](const std::string& name, std::span<float> values) {
    if (name == variables.front().name)
      say(settings, fmt::format("{}: {} of {} variables begin with the values of {}", who, start->count(),
                                variables.size(), settings.training.init_from));
    start->fill(name, values);
  };
}

}  // namespace ps::tools
