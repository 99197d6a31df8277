// The only source that includes <regex>, which takes two seconds to compile.
#include "cli/init_match.hpp"

#include <fmt/format.h>

#include <regex>

#include "ps_shm/errors.hpp"

namespace ps_shm::tools {

void check_init_match(const std::string& pattern) {
  try {
    static_cast<void>(std::regex(pattern));
  } catch (const std::regex_error& error) {
    throw Error(fmt::format("--init-match {}: not a regular expression: {}", pattern, error.what()));
  }
}

bool matches_init(const std::string& pattern, const std::string& name) {
  return pattern.empty() || std::regex_search(name, std::regex(pattern));
}

}  // namespace ps_shm::tools
