#include "option_names.hpp"

#include <regex>

namespace ps::tools {

std::string with_option_names(const std::string& message) {
  static const std::regex setting("`([a-z][a-z0-9-]*)`");
  return std::regex_replace(message, setting, "--$1");
}

}  // namespace ps::tools
