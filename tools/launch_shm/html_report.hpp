// launch_shm --report: a run as one web page that needs no other file, no script and no network.
#pragma once

#include <string>

#include "cli/options.hpp"
#include "report/summary.hpp"

namespace ps_shm::tools {

// Plots as SVG, in the reader's light or dark colours: loss, staleness, the workers' time by phase; and the settings and
// the machine.
std::string to_html(const report::RunReport& run, const LaunchSettings& settings);

}  // namespace ps_shm::tools
