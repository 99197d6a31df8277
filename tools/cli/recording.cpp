#include "cli/recording.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/command_line.hpp"
#include "cli/option_tables.hpp"
#include "config/error_code.hpp"
#include "config/modes.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::tools {
namespace {

constexpr const char* kLaunchFile = "launch.json";
constexpr int kForm = 1;

// Options that do not affect the resulting parameters; a replay accepts the first ones.
constexpr std::array kOfReplay = {"job",    "replay", "json",    "verbose",      "save",
                                  "report", "trace",  "replace", "keep-segments"};
constexpr std::array kNotOfJob = {"record",
                                  "delay",
                                  "restart-workers",
                                  "workers-per-process",
                                  "linger",
                                  "step-timeout",
                                  "curve",
                                  "evaluate-every",
                                  "publish",
                                  "publish-every",
                                  "publish-averages",
                                  "publish-partial",
                                  "summary-dir",
                                  "summary-every",
                                  "checkpoint-dir",
                                  "checkpoint-every",
                                  "keep-checkpoints",
                                  "keep-best",
                                  "max-file-bytes",
                                  "fresh-start"};

bool is_of_job(std::string_view name) {
  return std::find(kOfReplay.begin(), kOfReplay.end(), name) == kOfReplay.end() &&
         std::find(kNotOfJob.begin(), kNotOfJob.end(), name) == kNotOfJob.end();
}

struct LaunchFile {
  std::vector<std::string> arguments;
  std::string digest;
};

LaunchFile read_launch(const std::string& folder) {
  const auto fail = [&] {
    throw Error(fmt::format("--replay {}: {} is missing, or not of a recording of this version", folder, kLaunchFile));
  };
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error))
    throw Error(fmt::format("--replay {}: {}", folder,
                            error && error != std::errc::no_such_file_or_directory ? error.message()
                            : std::filesystem::exists(folder, error) ? "it is not a folder; name the one of --record"
                                                                     : "there is no such folder"),
                ErrorCode::kNotFound);
  const std::string path = folder + "/" + kLaunchFile;
  std::ifstream file(path);
  LaunchFile launch;
  try {
    const nlohmann::json json = nlohmann::json::parse(file);
    if (json.at("form") != kForm) fail();
    json.at("arguments").get_to(launch.arguments);
    launch.digest = json.value("digest", "");
  } catch (const nlohmann::json::exception&) {
    fail();
  }
  return launch;
}

std::string text_of(std::uint64_t digest) { return fmt::format("{:016x}", digest); }

}  // namespace

bool is_of_replay(const std::string& setting) {
  return std::find(kOfReplay.begin(), kOfReplay.end(), setting) != kOfReplay.end();
}

void check_recording(const LaunchSettings& settings) {
  if (settings.record.empty()) return;
  const JobConfig& job = settings.ps.job;
  const auto refuse = [](const std::string& what) { throw Error("--record: " + what); };
  if (!settings.replay.empty()) refuse("a replay cannot be recorded; leave --record out");
  if (!settings.program.empty()) refuse("for worker_shm only; a program after -- sets WorkerOptions::record itself");
  if (traits_of(job.mode).steps_together())
    refuse("mode sync has no order to record: without --quorum and --reduce atomic its digest is the same every time");
  if (job.layout == Layout::kInplace || settings.training.is_sparse())
    refuse(
        "in-place elements and rows are updated one by one, in an order that cannot be recorded; choose --layout "
        "versioned");
  if (job.threads != 1) refuse("the chunks of a worker with --threads have no fixed order; choose --threads 1");
  const auto is_cpu = [](const device::DeviceChoice& choice) { return choice == device::DeviceChoice(); };
  if (!is_cpu(settings.device) || !std::all_of(settings.device_of_rank.begin(), settings.device_of_rank.end(),
                                               [&](const auto& one) { return is_cpu(one.second); }))
    refuse("pulls and sums of a GPU have no fixed order; choose --device cpu");
  if (job.elastic_max != 0) refuse("the number of workers must not change; choose --workers N");
  if (settings.training.on_nan == OnNan::kRestore)
    refuse("a recording does not contain the checkpoints of --on-nan restore");
  if (settings.training.push_every > 1 && job.optimizer.schedule != Schedule())
    refuse("with --lr-schedule the rates of local steps depend on timing; leave out --lr-schedule or --push-every");
}

std::vector<std::string> arguments_of_job(int argc, char** argv) {
  const auto row_of = [](std::string_view name) {
    const auto& rows = launch_options();
    return std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.name == name; });
  };
  std::vector<std::string> arguments;
  for (const auto& row : launch_options())  // what is given on the command line overrides it
    if (const char* value = std::getenv(variable_of(row.name).c_str());
        is_of_job(row.name) && value != nullptr && *value != '\0')
      arguments.push_back(fmt::format("{}={}", option_of(row.name), value));
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto equal = argument.find('=');
    const auto row = argument.starts_with("--") ? row_of(argument.substr(2, equal - 2)) : launch_options().end();
    const bool has_value = row != launch_options().end() && row->value.kind != config::Kind::kFlag &&
                           equal == std::string::npos && i + 1 < argc;
    if (row != launch_options().end() && is_of_job(row->name)) {
      arguments.push_back(argument);
      if (has_value) arguments.emplace_back(argv[i + 1]);
    }
    i += has_value;
  }
  return arguments;
}

std::vector<std::string> recorded_arguments(const std::string& folder) { return read_launch(folder).arguments; }

RecordedLaunch::RecordedLaunch(const std::string& folder, const std::vector<std::string>& arguments)
    : folder_(folder), arguments_(arguments) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error || !std::filesystem::is_empty(folder_, error) || error)
    throw Error(
        fmt::format("--record {}: {}", folder_,
                    error ? error.message() : "it is not empty; name a folder that is empty or does not exist yet"),
        error ? config::code_of(error.value()) : ErrorCode::kAlreadyExists);
  write("");
}

void RecordedLaunch::finish(std::uint64_t digest) const { write(text_of(digest)); }

void RecordedLaunch::write(const std::string& digest) const {
  const std::string path = folder_ + "/" + kLaunchFile;
  std::ofstream file(path);
  file << nlohmann::json{{"form", kForm}, {"arguments", arguments_}, {"digest", digest}}.dump(1) << '\n';
  if (!file.flush()) throw Error(fmt::format("--record: cannot write {}", path));
}

ReplayedLaunch::ReplayedLaunch(const std::string& folder, std::uint32_t workers)
    : folder_(folder), records_(folder), coordinator_(records_.order().chunks()) {
  for (const record::Life& life : records_.lives())
    if (life.rank >= workers)
      throw Error(fmt::format("--replay {}: it has a recording of worker {}, but its job has {} workers", folder,
                              life.rank, workers));
}

std::string ReplayedLaunch::check_digest(std::uint64_t digest) const {
  const std::string recorded = read_launch(folder_).digest, own = text_of(digest);
  if (recorded.empty())
    return fmt::format("the replay ended with digest {}; the recorded run did not reach its end, and has none", own);
  if (recorded != own)
    throw Error(
        fmt::format("--replay {}: the replay ended with digest {}, the recorded run with {}", folder_, own, recorded));
  return fmt::format("the replay ended with the digest of the recorded run, {}: the parameters are the same", own);
}

}  // namespace ps_shm::tools
