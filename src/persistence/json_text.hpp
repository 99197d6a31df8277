// Texts of files in messages. A message may go to a terminal, so nothing of a file is in it as it stands there.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace ps_shm::persistence {

// A text of a file as printable ASCII, with escapes, truncated to 64 bytes.
inline std::string escaped(std::string_view text) {
  constexpr std::size_t kMost = 64;
  const std::string quoted =
      nlohmann::json(text.substr(0, kMost)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2) + (text.size() > kMost ? "..." : "");
}

// What is wrong with JSON: the library's own texts contain bytes of the file. Others' exceptions have their text.
inline std::string json_fault(const std::exception& error) {
  if (const auto* parse = dynamic_cast<const nlohmann::json::parse_error*>(&error))
    return fmt::format("invalid JSON at byte {}", parse->byte);
  if (dynamic_cast<const nlohmann::json::exception*>(&error) != nullptr)
    return "a value that is missing or of another type";
  return error.what();
}

}  // namespace ps_shm::persistence
