#include "cli/option_checks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/option_names.hpp"
#include "config/job_settings.hpp"
#include "ps_shm/bundle_spec.hpp"
#include "update/traits.hpp"

namespace ps_shm::tools {

void check_quorum(const JobConfig& job) {
  const std::uint32_t most = std::max(job.workers, job.elastic_max);
  if (job.quorum > most)
    throw Error(fmt::format("--quorum {}: exceeds --workers {}; give at most --quorum {}, or more workers", job.quorum,
                            config::workers_text(job), most));
}

void check_last_rank(const WorkerSettings& settings) {
  const std::uint32_t first = settings.rank.value_or(0), last = first + settings.workers_per_process - 1;
  if (last >= kMaxWorkers)
    throw Error(fmt::format("`workers-per-process` {}: the workers would have the ranks {} to {}; ranks are 0 to {}",
                            settings.workers_per_process, first, last, kMaxWorkers - 1));
}

void check_results(const LaunchSettings& settings) {
  namespace fs = std::filesystem;
  const std::pair<const char*, std::string> all[] = {
      {"--save", settings.save}, {"--report", settings.report}, {"--trace", settings.trace}};
  std::map<fs::path, const char*> option_of_file;
  for (const auto& [option, path] : all) {
    std::error_code unknown;
    if (path.empty() || (fs::exists(path, unknown) && !fs::is_regular_file(path, unknown))) continue;
    fs::path file = fs::weakly_canonical(fs::absolute(path, unknown), unknown);
    if (unknown) file = fs::path(path).lexically_normal();
    if (const auto [other, is_new] = option_of_file.try_emplace(file, option); !is_new)
      throw Error(fmt::format("{} {}: {} names the same file, and one would overwrite the other; choose another file",
                              option, path, other->second));
  }
}

void check_hyper_parameters(const CommandLine& line, const Optimizer& optimizer) {
  const auto has = [](const update::Traits& rule, float Optimizer::*member) {
    return std::any_of(std::begin(rule.hyper_parameters), std::end(rule.hyper_parameters),
                       [&](const update::HyperParameter& one) { return one.from == member; });
  };
  for (const config::Setting<Optimizer>& row : config::optimizer_settings()) {
    if (row.traits.hyper_parameter == nullptr || !line.was_given(row.name)) continue;
    if (has(update::traits_of(optimizer.rule), row.traits.hyper_parameter)) continue;
    std::vector<std::string> others;
    for (const update::Traits& rule : update::all_rules())
      if (has(rule, row.traits.hyper_parameter)) others.emplace_back(rule.name);
    throw Error(fmt::format("{}: not used by optimizer {}; leave it out, or choose --optimizer {}", option_of(row.name),
                            to_string(optimizer.rule), fmt::join(others, " or ")));
  }
  if (optimizer.rule == UpdateRule::kFtrl && line.was_given("weight-decay"))
    throw Error("--weight-decay: not used by optimizer ftrl; leave it out, or choose --l2, which its formula has");
}

void check_sum(const CommandLine& line, const TrainingSettings& training, const Optimizer& optimizer) {
  if (training.is_sparse() || !update::traits_of(optimizer.rule).is_sum) return;
  if (training.push_every <= 1) {
    for (const config::Setting<Optimizer>& row : config::optimizer_settings())
      if (line.was_given(row.name) && row.name != std::string_view("optimizer"))
        throw Error(
            fmt::format("{}: not used by optimizer {} without --push-every; leave it out, or choose --optimizer sgd",
                        option_of(row.name), to_string(optimizer.rule)));
    return;
  }
  if (line.was_given("clip-norm"))
    throw Error(
        "--clip-norm: the local steps of --push-every clip values only; choose --clip-value, or --optimizer sgd");
  if (line.was_given("ema"))
    throw Error("--ema: optimizer add, the default with --push-every, keeps no averages; choose --optimizer sgd");
  if (line.was_given("quorum"))
    throw Error(
        "--quorum: optimizer add, the default with --push-every, needs the number of differences in a step before it "
        "ends; choose --optimizer sgd --lr 1, which applies their mean");
  if (line.was_given("lr-staleness"))
    throw Error(
        "--lr-staleness: optimizer add, the default with --push-every, has no learning rate; choose --optimizer sgd");
}

void check_job_settings(const CommandLine& line) {
  const std::set<std::string> finding = {"job", "group"};
  for (const char* option : {"checkpoint-every", "keep-checkpoints", "keep-best", "max-file-bytes", "fresh-start"})
    if (line.was_typed(option))
      throw Error(fmt::format(
          "--{}: the ps writes the checkpoints; give it to ps_shm, or to a worker with --standalone", option));
  for (const config::Setting<JobConfig>& row : config::job_settings())
    if ((row.programs & config::kWorker) != 0 && finding.count(row.name) == 0 && line.was_typed(row.name))
      throw Error(fmt::format("{0}: set by the job's ps; give {0} to ps_shm, or to a worker with --standalone",
                              option_of(row.name)));
}

void check_standalone(const CommandLine& line) {
  for (const char* option :
       {"rank", "workers-per-process", "threads", "together", "wait-job", "group", "wire", "enqueue", "push-every",
        "local-lr", "shard-data", "lr-staleness", "record", "replay", "replay-coordinator", "trace"})
    if (line.was_typed(option))
      throw Error(fmt::format("--{}: a process without a ps trains alone; leave --standalone out", option));
}

void check_publish(const PsSettings& settings) {
  if (settings.publish.name.empty()) {
    if (settings.publish.averages || settings.publish.partial || settings.publish.every != PublishSettings().every)
      throw Error("--publish-every, --publish-averages, --publish-partial: give --publish NAME");
    return;
  }
  check_publication_name(settings.publish.name);
  if (settings.publish.averages && settings.job.optimizer.ema == 0)
    throw Error("--publish-averages: the job keeps no moving averages; give --ema");
}

void check_checkpoint(const CheckpointSettings& settings) {
  CheckpointSettings without = CheckpointSettings();
  without.dir = settings.dir;
  if (settings.dir.empty() && !(settings == without))
    throw Error(
        "--checkpoint-every, --keep-checkpoints, --keep-best, --max-file-bytes, --fresh-start: give --checkpoint-dir "
        "DIR");
}

void check_summary(const SummarySettings& settings) {
  if (settings.dir.empty() && settings.every != SummarySettings().every)
    throw Error("--summary-every: give --summary-dir DIR");
}

void check_evaluation(const CommandLine& line, const WorkerSettings& settings) {
  if (!settings.evaluate) {
    for (const char* option : {"evaluate-every", "publication"})
      if (line.was_given(option)) throw Error(fmt::format("--{}: requires --evaluate", option));
    return;
  }
  for (const char* option : {"standalone", "rank",       "workers-per-process",
                             "together",   "delay",      "device",
                             "wire",       "threads",    "seed",
                             "steps",      "on-nan",     "enqueue",
                             "push-every", "local-lr",   "trace",
                             "record",     "replay",     "init-from",
                             "init-match", "shard-data", "replay-coordinator"})
    if (line.was_typed(option))
      throw Error(fmt::format("--{}: cannot be combined with --evaluate, which does not train", option));
  if (!settings.publication.empty()) check_publication_name(settings.publication);
}

void check_on_nan(const TrainingSettings& training, const CheckpointSettings& checkpoint) {
  if (training.on_nan == OnNan::kRestore && checkpoint.dir.empty())
    throw Error("--on-nan restore: give --checkpoint-dir DIR, where the job's checkpoints are");
}

void check_dtype(const TrainingSettings& training, const device::DeviceChoice& device) {
  if (training.dtype == DType::kFloat32) return;
  const std::string what = fmt::format("--dtype {}", to_string(training.dtype));
  if (device.must_be_gpu()) throw Error(what + ": only for workers on the CPU; choose --device cpu");
}

void check_workers_per_process(const LaunchSettings& settings) {
  if (settings.workers_per_process == 1) return;
  const auto refuse = [](const std::string& why) { throw Error("--workers-per-process: " + why); };
  if (settings.ps.job.elastic_max != 0)
    refuse("workers of one process cannot be added and removed one by one; choose --workers N");
  if (!settings.delay_of_rank.empty() || !settings.device_of_rank.empty() || !settings.wire_of_rank.empty())
    refuse("workers of one process have the same settings; leave it out, or RANK: in --delay, --device and --wire");
}

}  // namespace ps_shm::tools
