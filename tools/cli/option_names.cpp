#include "cli/option_names.hpp"

#include <algorithm>
#include <string_view>

namespace ps_shm::tools {
namespace {

bool is_setting_name(std::string_view text) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz";
  return !text.empty() && kLetters.find(text[0]) != text.npos &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == text.npos;
}

}  // namespace

std::string with_option_names(const std::string& message) {
  std::string result;
  for (std::size_t at = 0;;) {
    const std::size_t open = message.find('`', at), close = open == message.npos ? open : message.find('`', open + 1);
    if (close == message.npos) return result + message.substr(at);
    const std::string name = message.substr(open + 1, close - open - 1);
    const bool is_name = is_setting_name(name);
    result += message.substr(at, open - at) + (is_name ? "--" + name : "`" + name);
    at = is_name ? close + 1 : close;  // a quote that closes no name may open one
  }
}

}  // namespace ps_shm::tools
