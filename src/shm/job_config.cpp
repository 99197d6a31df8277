#include "ps/job_config.hpp"

#include <fmt/format.h>

#include <cmath>

#include "ps/errors.hpp"
#include "ps/variable.hpp"

namespace ps {

const char* to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kInt64:
      return "int64";
  }
  return "unknown";
}

const char* to_string(Mode mode) noexcept {
  switch (mode) {
    case Mode::kAsync:
      return "async";
    case Mode::kSync:
      return "sync";
  }
  return "unknown";
}

const char* to_string(Layout layout) noexcept {
  switch (layout) {
    case Layout::kVersioned:
      return "versioned";
    case Layout::kInplace:
      return "inplace";
  }
  return "unknown";
}

const char* to_string(Adds adds) noexcept {
  switch (adds) {
    case Adds::kExact:
      return "exact";
    case Adds::kRacy:
      return "racy";
  }
  return "unknown";
}

const char* to_string(UpdateRule rule) noexcept {
  switch (rule) {
    case UpdateRule::kAdd:
      return "add";
    case UpdateRule::kSgd:
      return "sgd";
  }
  return "unknown";
}

std::uint64_t VariableSpec::element_count() const noexcept {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : shape) count *= extent;
  return count;
}

void check_job_name(const std::string& name) {
  constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  const bool good = !name.empty() && name.size() <= 64 && std::string(kLetters).find(name[0]) != std::string::npos &&
                    name.find_first_not_of(std::string(kLetters) + "_-") == std::string::npos;
  if (!good)
    throw Error(
        fmt::format("'{}' cannot name a job: use 1 to 64 of A-Z a-z 0-9 _ -, beginning with a letter or digit", name));
}

void check(const JobConfig& config) {
  const auto require = [](bool good, const char* what) {
    if (!good) throw Error(what);
  };
  check_job_name(config.job);
  require(config.workers >= 1 && config.workers <= kMaxWorkers, "workers must be 1 to 256");
  require(config.max_workers == 0 || (config.max_workers >= config.workers && config.max_workers <= kMaxWorkers),
          "max-workers must be at least workers and at most 256");
  require(
      config.mode != Mode::kSync || config.layout != Layout::kInplace,
      "mode sync needs layout versioned: helping is exact for versioned chunks only; use --layout versioned or --mode "
      "async");
  require(std::isfinite(config.learning_rate) && config.learning_rate > 0, "lr must be greater than 0");
  require(std::isfinite(config.l2) && config.l2 >= 0, "l2 must be at least 0");
  require(std::isfinite(config.linger_seconds) && config.linger_seconds >= 0, "linger must be at least 0");
  require(std::isfinite(config.step_timeout_seconds) && config.step_timeout_seconds >= 0,
          "step-timeout must be at least 0");
}

}  // namespace ps
