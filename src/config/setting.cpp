#include "config/setting.hpp"

#include <fmt/format.h>

#include "config/spelling.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::config {

const char* to_string(Group group) noexcept {
  switch (group) {
    case Group::kJob:
      return "Job";
    case Group::kWorkers:
      return "Workers";
    case Group::kOptimizer:
      return "Optimizer";
    case Group::kPlacement:
      return "Placement";
    case Group::kData:
      return "Data";
    case Group::kOutput:
      return "Output";
    case Group::kRun:
      return "Run";
  }
  return "?";
}

std::string with_unit(const std::string& text, const std::string& unit) {
  if (unit.empty() || unit == "s") return text + unit;
  return text + " " + (text == "1" && unit.ends_with('s') ? unit.substr(0, unit.size() - 1) : unit);
}

void fail(const char* setting, const std::string& what) {
  throw Error(fmt::format("`{}`{}{}", setting, what.starts_with("must ") ? " " : ": ", what));
}

const std::string& choose(const char* setting, const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    if (folded(word) == folded(text)) return word;
  throw Error(fmt::format("`{0}`: unknown {0} '{1}'; expected {2}{3}", setting, text, fmt::join(words, "|"),
                          did_you_mean(text, words)));
}

void call_for(const char* setting, const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& error) {
    fail(setting, error.what());
  }
}

}  // namespace ps_shm::config
