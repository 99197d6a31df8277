// launch_shm: starts a ps and its workers on this machine, and shows their progress and a summary.
#include <fmt/format.h>

#include <exception>
#include <optional>

#include "cli/options.hpp"
#include "cli/output.hpp"
#include "common/children.hpp"
#include "launch_shm/launch.hpp"
#include "ps_shm/errors.hpp"

namespace {

using namespace ps_shm;

int run(int argc, char** argv) {
  tools::LaunchSettings settings;
  if (const std::optional<int> code = tools::parse(argc, argv, settings)) return *code;
  tools::catch_signals(tools::SecondSignal::kIsCounted);
  try {
    tools::Launch launch(settings);
    const int code = launch.run();
    if (const auto& report = launch.report())
      tools::write_out(settings.json ? to_json(*report).dump() + "\n" : to_text(*report, report::columns_of(stdout)));
    return code;
  } catch (const Interrupted&) {  // while reading the data
    return tools::kInterrupted;
  } catch (const std::exception& error) {
    return tools::fail("launch_shm", tools::kFailed, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  return ps_shm::tools::run_main("launch_shm", argc, argv, [&] { return run(argc, argv); });
}
