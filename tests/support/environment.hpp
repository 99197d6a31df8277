// Variables of the environment as a test needs them.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace ps_shm::test {

// Sets a variable of the environment, or removes it, while the object lives. For tests with one thread.
class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* was = std::getenv(name)) was_ = was;
    set(value);
  }
  ~EnvironmentVariable() { set(was_); }
  EnvironmentVariable(const EnvironmentVariable&) = delete;
  EnvironmentVariable& operator=(const EnvironmentVariable&) = delete;

 private:
  void set(const std::optional<std::string>& value) const {
    if (value)
      setenv(name_, value->c_str(), 1);
    else
      unsetenv(name_);
  }

  const char* name_;
  std::optional<std::string> was_;
};

}  // namespace ps_shm::test
