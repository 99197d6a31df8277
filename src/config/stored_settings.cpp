// Encodes a job's settings as text, and decodes them.
#include <fmt/format.h>

#include <algorithm>

#include "config/job_settings.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::config {

std::string encode(const JobConfig& config) {
  std::string text;
  for (const Setting<JobConfig>& setting : job_settings()) {
    if (!setting.traits.is_stored) continue;
    const std::string value = setting.value.write(config);
    if (value.find('\n') != std::string::npos) fail(setting.name, "must be one line");
    text += fmt::format("{}={}\n", setting.name, value);
  }
  return text;
}

JobConfig decode(std::string_view text) {
  JobConfig config;
  for (const Setting<JobConfig>& setting : job_settings()) {
    if (!setting.traits.is_stored) continue;
    const std::string front = fmt::format("{}=", setting.name);
    const std::size_t end = text.find('\n');
    if (!text.starts_with(front) || end == std::string_view::npos) fail(setting.name, "it is missing");
    const std::string value(text.substr(front.size(), end - front.size()));
    if (!std::all_of(value.begin(), value.end(), [](char c) { return c > ' ' && c < 0x7f; }))
      fail(setting.name, "it is not valid text");
    if (!value.empty())
      read(setting, config, value);
    else if (!setting.value.write(config).empty())
      fail(setting.name, "it has no value");
    text.remove_prefix(end + 1);
  }
  if (!text.empty()) throw Error("trailing data after the last setting");
  return config;
}

std::uint64_t hash_of_stored() noexcept {
  std::uint64_t hash = 14695981039346656037ULL;
  const auto add = [&](std::string_view text) {
    for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211ULL;
    hash *= 1099511628211ULL;  // separates the texts
  };
  for (const Setting<JobConfig>& setting : job_settings())
    if (setting.traits.is_stored) add(setting.name), add(setting.value.form);
  return hash;
}

}  // namespace ps_shm::config
