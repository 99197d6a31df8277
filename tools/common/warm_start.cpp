#include "common/warm_start.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "cli/init_match.hpp"
#include "persistence/json_text.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::tools {

WarmStart::WarmStart(const TrainingSettings& training, std::span<const train::ParameterSpec> variables)
    : match_(training.init_match), file_(training.init_from) {
  std::vector<std::string> wrong;
  for (const train::ParameterSpec& variable : variables) {
    if (!matches(variable.name)) continue;
    const auto found = file_.tensors().find(variable.name);
    if (found == file_.tensors().end())
      wrong.push_back(fmt::format("it lacks {}", variable.name));
    else if (!std::equal(found->second.shape.begin(), found->second.shape.end(), variable.shape.begin(),
                         variable.shape.end()))
      wrong.push_back(fmt::format("{} is [{}] there and [{}] here", variable.name, fmt::join(found->second.shape, ", "),
                                  fmt::join(variable.shape, ", ")));
    else if (!persistence::is_float(found->second.dtype))
      wrong.push_back(fmt::format("{} is of dtype {} there", variable.name, found->second.dtype));
    else
      ++count_;
  }
  if (!wrong.empty()) {
    constexpr std::size_t kMostNames = 50;
    std::vector<std::string> there;
    for (const auto& [name, tensor] : file_.tensors()) {
      if (there.size() < kMostNames) there.push_back(persistence::escaped(name));
    }
    if (there.size() < file_.tensors().size())
      there.push_back(fmt::format("and {} more", file_.tensors().size() - there.size()));
    throw Error(fmt::format("--init-from {} does not fit: {} (it has: {})", file_.path(), fmt::join(wrong, "; "),
                            fmt::join(there, ", ")),
                ErrorCode::kIncompatible);
  }
  if (count_ == 0) throw Error(fmt::format("--init-match {}: matches no variable of the model", match_));
}

bool WarmStart::matches(const std::string& name) const {
  return matches_init(match_, name);
}

void WarmStart::fill(const std::string& name, std::span<float> values) const {
  if (matches(name)) file_.read(file_.tensors().find(name)->second, values);
}

}  // namespace ps_shm::tools
