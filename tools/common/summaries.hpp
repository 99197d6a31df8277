// --summary-dir: summaries for TensorBoard, written during a run. Each writer has its own folder there: the ps, each
// worker, and the test. TensorBoard shows values with the same tag side by side.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "cli/ps_options.hpp"
#include "config/interval.hpp"
#include "config/setting.hpp"
#include "persistence/event_file.hpp"
#include "persistence/summary.hpp"

namespace ps_shm::tools {

using LogCallback = std::function<void(const std::string& line)>;

// The folder of one writer. Errors are reported once; training continues, and writing resumes when it can.
class SummaryWriter {
 public:
  SummaryWriter(const SummarySettings& settings, const std::string& folder, persistence::Summary opening,
                LogCallback log);

  bool is_due(std::uint64_t step) const;
  void write(std::uint64_t step, const persistence::Summary& summary);
  // Nothing has been written for this step yet.
  bool lacks(std::uint64_t step) const noexcept { return !written_ || *written_ != step; }

 private:
  const config::Interval every_;
  const std::string folder_;
  persistence::EventFile file_;
  const LogCallback log_;
  std::optional<config::Due> due_;  // none: at once
  std::optional<std::uint64_t> written_;
  bool is_failing_ = false;
};

// The growth rate of a counter that is read now and then.
class Speed {
 public:
  std::optional<double> per_second(double seconds, std::uint64_t count);  // since the last call; none: first call

 private:
  std::optional<double> seconds_;
  std::uint64_t count_ = 0;
};

// A table of settings in Markdown.
template <class Struct>
std::string settings_table(const config::Settings<Struct>& rows, const Struct& settings) {
  std::string text = "| setting | value |\n|---|---|\n";
  for (const config::Setting<Struct>& row : rows)
    text += std::string("| ") + row.name + " | " + config::show(row, settings) + " |\n";
  return text;
}

// Where the summaries are, and how to look at them.
std::string summaries_line(const std::string& dir);

}  // namespace ps_shm::tools
