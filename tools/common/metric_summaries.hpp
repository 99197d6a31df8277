// --summary-dir: the metrics of a model in the summaries, of programs that train or test one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/ps_options.hpp"
#include "common/summaries.hpp"
#include "persistence/summary.hpp"
#include "report/summary.hpp"

namespace ps_shm::tools {

// Metrics of a model with the parameters of a step, and with their moving averages.
void add_metrics(persistence::Summary& summary, const report::Metrics& metrics, const std::string& prefix = "");
void write_test(const SummarySettings& settings, std::uint64_t step, const report::Metrics& test,
                const std::optional<report::Metrics>& average_test, LogCallback log);

}  // namespace ps_shm::tools
