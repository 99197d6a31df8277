// --summary-dir: what a run writes for TensorBoard while it trains. Each writer has a folder there: the ps, each worker,
// the test. TensorBoard shows what has the same tag side by side.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "config/interval.hpp"
#include "config/setting.hpp"
#include "keep/event_file.hpp"
#include "options.hpp"
#include "report/summary.hpp"

namespace ps::tools {

using Notice = std::function<void(const std::string& line)>;

// One writer's folder. Trouble is told once; training goes on, and so does writing as soon as it can.
class SummaryWriter {
 public:
  SummaryWriter(const SummarySettings& settings, const std::string& folder, keep::Summary opening, Notice notice);

  bool is_due(std::uint64_t step) const;
  void write(std::uint64_t step, const keep::Summary& summary);
  // Nothing has been written of this step.
  bool lacks(std::uint64_t step) const noexcept { return !written_ || *written_ != step; }

 private:
  const config::Interval every_;
  const std::string folder_;
  keep::EventFile file_;
  const Notice notice_;
  std::optional<config::Due> due_;  // none: at once
  std::optional<std::uint64_t> written_;
  bool is_failing_ = false;
};

// How fast something grows that is counted now and then.
class Speed {
 public:
  std::optional<double> per_second(double seconds, std::uint64_t count);  // since the last call; none: it is the first

 private:
  std::optional<double> seconds_;
  std::uint64_t count_ = 0;
};

// A table of settings as markdown.
template <class Struct>
std::string settings_table(const config::Settings<Struct>& rows, const Struct& settings) {
  std::string text = "| setting | value |\n|---|---|\n";
  for (const config::Setting<Struct>& row : rows)
    text += std::string("| ") + row.name + " | " + config::show(row, settings) + " |\n";
  return text;
}

// How good a model is with the parameters of a step; with their moving averages.
void add_metrics(keep::Summary& summary, const report::Metrics& metrics, const std::string& prefix = "");
void write_test(const SummarySettings& settings, std::uint64_t step, const report::Metrics& test,
                const std::optional<report::Metrics>& average_test, Notice notice);

}  // namespace ps::tools
