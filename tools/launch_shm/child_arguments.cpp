#include "launch_shm/child_arguments.hpp"

#include <fmt/format.h>

#include <sstream>

#include "cli/command_line.hpp"
#include "cli/option_tables.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::tools {
namespace {

using Arguments = std::vector<std::string>;

template <class Value>
const Value& of_rank(const std::map<std::uint32_t, Value>& values, std::uint32_t rank, const Value& of_others) {
  const auto found = values.find(rank);
  return found != values.end() ? found->second : of_others;
}

// The settings that differ from the defaults. The child's environment has no PS_SHM_ variables.
template <class Struct>
Arguments arguments(const config::Settings<Struct>& rows, const Struct& settings) {
  Arguments all;
  const Struct defaults;
  for (const config::Setting<Struct>& row : rows) {
    std::string text = row.value.write(settings);
    if (text == row.value.write(defaults)) continue;
    all.push_back(option_of(row.name));
    if (row.value.kind != config::Kind::kFlag) all.push_back(std::move(text));
  }
  return all;
}

}  // namespace

Arguments ps_arguments(const PsSettings& settings) { return arguments(ps_options(), settings); }

Arguments worker_arguments(const WorkerSettings& settings) { return arguments(worker_options(), settings); }

WorkerSettings worker_settings(const LaunchSettings& launch, std::uint32_t rank, bool together) {
  WorkerSettings worker;
  worker.alone.job = launch.ps.job.job;
  worker.training = launch.training;
  // The ps determines the job's end and schedule, but a worker that counts ends by itself.
  worker.training.epochs = 0;
  worker.training.epoch_schedule = "";
  if (launch.training.learns()) worker.training.steps = 0;
  if (launch.training.on_nan == OnNan::kRestore) worker.checkpoint.dir = launch.ps.checkpoint.dir;
  worker.rank = rank;
  worker.threads = launch.ps.job.threads;
  worker.delay = of_rank(launch.delay_of_rank, rank, launch.delay);
  worker.device = of_rank(launch.device_of_rank, rank, launch.device);
  worker.wire = of_rank(launch.wire_of_rank, rank, launch.wire);
  if (launch.training.learns()) worker.summary = launch.ps.summary;
  worker.record = launch.record;
  worker.replay = launch.replay;
  worker.together = together && launch.replay.empty();  // a short job might end before the last one has started
  worker.json = true;
  worker.quiet = !launch.verbose;
  return worker;
}

WorkerSettings evaluator_settings(const LaunchSettings& launch) {
  WorkerSettings evaluator = worker_settings(launch, 0, false);
  evaluator.rank.reset();
  evaluator.threads.reset();
  evaluator.delay = {};
  evaluator.device = {};
  evaluator.wire = {};
  evaluator.record = evaluator.replay = "";
  const TrainingSettings defaults;  // of what evaluates nothing
  evaluator.training.on_nan = defaults.on_nan;
  evaluator.checkpoint = {};  // with --on-nan restore
  evaluator.training.enqueue = defaults.enqueue;
  evaluator.training.push_every = defaults.push_every;
  evaluator.training.local_lr = defaults.local_lr;
  evaluator.training.shard_data = defaults.shard_data;
  evaluator.training.init_from = evaluator.training.init_match = "";
  evaluator.evaluate = true;
  evaluator.every = launch.evaluate_every;
  evaluator.publication = launch.ps.publish.name;
  return evaluator;
}

std::vector<std::string> bridge_arguments(const LaunchSettings& launch) {
  std::istringstream words(launch.bridge);
  std::string place;
  words >> place;
  const std::size_t slash = place.rfind('/');
  if (slash == 0 || slash == std::string::npos || slash + 1 == place.size())
    throw Error(fmt::format("--bridge '{}': it begins with HOST:PORT/BOXES", launch.bridge));
  Arguments all = {"-m",     "ps_shm.bridge",        "--job",   launch.ps.job.job,
                   "--meet", place.substr(0, slash), "--boxes", place.substr(slash + 1)};
  if (!launch.ps.job.group.empty()) all.insert(all.end(), {"--group", launch.ps.job.group});
  if (launch.training.on_nan == OnNan::kSkip) all.emplace_back("--heal");
  for (std::string word; words >> word;) all.push_back(word);
  return all;
}

std::vector<std::string> program_variables(const LaunchSettings& launch, std::uint32_t rank) {
  // Python buffers output to a pipe that it would print to a terminal line by line.
  return {fmt::format("RANK={}", rank),
          fmt::format("LOCAL_RANK={}", rank),
          fmt::format("WORLD_SIZE={}", launch.ps.job.workers),
          fmt::format("LOCAL_WORLD_SIZE={}", launch.ps.job.workers),
          "PS_SHM_JOB=" + launch.ps.job.job,
          "PYTHONUNBUFFERED=1"};
}

}  // namespace ps_shm::tools
