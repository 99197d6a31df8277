// The texts of errors, for tests.
#pragma once

#include <functional>
#include <string>

#include "ps_shm/errors.hpp"

namespace ps_shm::test {

// The text of the Error that `call` throws, or "none".
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace ps_shm::test
