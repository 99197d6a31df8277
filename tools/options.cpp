#include "options.hpp"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

#include "command_line.hpp"
#include "config/job_settings.hpp"
#include "config/spelling.hpp"
#include "config/values.hpp"
#include "option_names.hpp"
#include "option_tables.hpp"
#include "options_page.hpp"
#include "output.hpp"
#include "ps/bundle_spec.hpp"
#include "ps/errors.hpp"
#include "ps/job_view.hpp"
#include "recording.hpp"
#include "sparse_options.hpp"
#include "train/models.hpp"
#include "update/traits.hpp"

namespace ps::tools {
namespace {

// Ranks for the most workers that an elastic job may have.
void make_room_for_elastic(JobConfig& job) {
  if (job.max_workers == 0 && job.elastic_max > std::max(16U, 2 * job.workers)) job.max_workers = job.elastic_max;
}

std::string default_job_name() {
  const passwd* user = getpwuid(geteuid());
  std::string name = user != nullptr ? user->pw_name : "job";
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-') c = '_';
  if (name.empty() || !std::isalnum(static_cast<unsigned char>(name[0]))) name.insert(0, 1, 'u');
  return fmt::format("{}-{}", name.substr(0, 40), getpid());
}

template <class Value>
void check_ranks(const char* option, const std::map<std::uint32_t, Value>& of_rank, const JobConfig& job) {
  const std::uint32_t most = std::max(job.workers, job.elastic_max);
  if (!of_rank.empty() && of_rank.rbegin()->first >= most)
    throw Error(fmt::format("{}: there is no worker {}; ranks are 0 to {}", option, of_rank.rbegin()->first, most - 1));
}

// A ps may wait for workers that are started by hand; a launcher starts them all.
void check_quorum(const JobConfig& job) {
  const std::uint32_t most = std::max(job.workers, job.elastic_max);
  if (job.quorum > most)
    throw Error(fmt::format("--quorum {}: --workers {} never has so many; give at most --quorum {}, or more workers",
                            job.quorum, config::workers_text(job), most));
}

// What launchers of other systems say of a process's place on its machine.
void look_for_rank(std::optional<std::uint32_t>& rank) {
  for (const char* variable : {"RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMIX_RANK",
                               "PMI_RANK", "SLURM_LOCALID"}) {
    const char* text = std::getenv(variable);
    if (rank || text == nullptr || *text == '\0') continue;
    try {
      rank = static_cast<std::uint32_t>(config::read_whole(text, 0, kMaxWorkers - 1));
    } catch (const Error& error) {
      throw Error(fmt::format("environment variable {}: {}", variable, error.what()));
    }
  }
}

// Throws Error for a setting of update rules that this one has not.
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
    throw Error(fmt::format("{}: optimizer {} has none; leave it out, or choose --optimizer {}", option_of(row.name),
                            to_string(optimizer.rule), fmt::join(others, " or ")));
  }
}

// A worker has the job's settings from its ps, but for those by which it finds the job. The environment may be that of
// ps and workers alike.
void check_job_settings(const CommandLine& line) {
  const std::set<std::string> finding = {"job", "group"};
  for (const config::Setting<JobConfig>& row : config::job_settings())
    if ((row.programs & config::kWorker) != 0 && finding.count(row.name) == 0 && line.was_typed(row.name))
      throw Error(fmt::format("{0}: the job's ps says it; give {0} to ps_shm, or to a worker with --standalone",
                              option_of(row.name)));
}

// Tells of variables PS_* that no program takes. They may be another program's, so it is no error. Programs of ours that
// launch_shm starts get none of them.
void check_environment(const char* program) {
  const std::vector<std::string> known = option_variables();
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string variable = std::string(*one).substr(0, std::string_view(*one).find('='));
    if (!variable.starts_with("PS_") || variable.starts_with("PS_TEST") ||
        std::find(known.begin(), known.end(), variable) != known.end())
      continue;
    fmt::print(stderr, "{}: no option is named by the environment variable {}{}\n", program, variable,
               config::did_you_mean(variable, known));
  }
}

void check_publish(const PsSettings& settings) {
  if (settings.publish.name.empty()) {
    if (settings.publish.averages || settings.publish.every != PublishSettings().every)
      throw Error("--publish-every, --publish-averages: give --publish NAME");
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
    throw Error("--checkpoint-every, --keep, --keep-best, --max-file-bytes, --fresh: give --checkpoint-dir DIR");
}

void check_summary(const SummarySettings& settings) {
  if (settings.dir.empty() && settings.every != SummarySettings().every)
    throw Error("--summary-every: give --summary-dir DIR");
}

// An evaluator joins no job: it reads what the ps publishes.
void check_evaluation(const CommandLine& line, const WorkerSettings& settings) {
  if (!settings.evaluate) {
    for (const char* option : {"every", "publication"})
      if (line.was_given(option)) throw Error(fmt::format("--{}: of --evaluate; give that, too", option));
    return;
  }
  for (const char* option : {"standalone", "rank", "together", "delay", "device", "wire", "threads", "seed"})
    if (line.was_typed(option)) throw Error(fmt::format("--{}: nothing for --evaluate, which does not train", option));
  if (settings.training.is_count())
    throw Error("--evaluate: model count has no loss; choose --model " + train::model_names(train::ModelKind::kDense));
  if (!settings.publication.empty()) check_publication_name(settings.publication);
}

void check_on_nan(const TrainingSettings& training, const CheckpointSettings& checkpoint) {
  if (training.on_nan == OnNan::kWarn) return;
  if (training.is_count()) throw Error("--on-nan: count has no loss; leave it out");
  if (training.on_nan == OnNan::kRestore && checkpoint.dir.empty())
    throw Error("--on-nan restore: give --checkpoint-dir DIR, where the job's checkpoints are");
}

// Of workers that are another program: what worker_shm alone would use is refused, and passed over where the environment
// says it.
void complete_program(const CommandLine& line, LaunchSettings& settings) {
  const auto refuse = [&](const std::string& name) {
    if (line.was_typed(name))
      throw Error(
          fmt::format("{}: of worker_shm; the program behind -- says what it trains, and how", option_of(name)));
  };
  for (const config::Setting<TrainingSettings>& row : training_settings())
    if (std::string_view(row.name) != "steps") refuse(row.name);
  for (const char* name : {"delay", "wire", "curve", "evaluate-every"}) refuse(name);
  if (!settings.training.epoch_schedule.empty())
    throw Error("--lr-schedule: with a program behind -- nobody knows the data; give step:DECAY:STEPS");
  if (!line.was_given("device"))
    settings.device.kind = device::DeviceChoice::Kind::kAuto;  // whoever has GPUs uses them
  TrainingSettings nothing;
  nothing.steps = settings.training.steps;
  settings.training = nothing;
  settings.evaluate_every = {};
  settings.curve_points = 0;
  settings.delay = {};
  settings.delay_of_rank.clear();
  settings.wire = Wire::kFloat32;
  settings.wire_of_rank.clear();
  const std::string& program = settings.program.front();
  settings.training.model = program.substr(program.rfind('/') + 1);
  JobConfig& job = settings.ps.job;
  job.steps = settings.training.steps;
  check_hyper_parameters(line, job.optimizer);
  check_publish(settings.ps);
  check_checkpoint(settings.ps.checkpoint);
  check_summary(settings.ps.summary);
  make_room_for_elastic(job);
  check(job);
  check_quorum(job);
  check_ranks("--device", settings.device_of_rank, job);
}

std::optional<int> parse_ps(int argc, char** argv, PsSettings& settings) {
  CommandLine line(
      {.name = "ps_shm",
       .taker = config::kPs,
       .purpose = "The ps of a job: creates it in shared memory, watches its workers, removes it at the end.",
       .examples = {{"ps_shm --job demo --workers 2 --steps 2000", "ends when both workers have left"},
                    {"ps_shm --job demo --workers 4 --mode ssp --staleness 4",
                     "nobody is more than four steps ahead of the slowest"},
                    {"ps_shm --job demo --adopt", "goes on with a job whose ps has died"}}});
  line.add(ps_options(), settings);
  return line.parse(argc, argv, [&] {
    if (settings.job.job.empty()) throw Error("--job: give the job a name");
    if (settings.task && *settings.task >= settings.job.tasks)
      throw Error(fmt::format("--task: tasks are 0 to {}; raise --ps-tasks", settings.job.tasks - 1));
    check_hyper_parameters(line, settings.job.optimizer);
    check_publish(settings);
    check_checkpoint(settings.checkpoint);
    check_summary(settings.summary);
    make_room_for_elastic(settings.job);
    check(settings.job);
  });
}

}  // namespace

std::vector<std::string> option_variables() {
  std::vector<std::string> all;
  const auto add = [&](const auto& rows) {
    for (const auto& row : rows) all.push_back(variable_of(row.name));
  };
  add(ps_options());
  add(worker_options());
  add(launch_options());
  return all;
}

std::optional<int> parse(int argc, char** argv, PsSettings& settings) {
  const std::optional<int> code = parse_ps(argc, argv, settings);
  if (!code) check_environment("ps_shm");
  if (code || !settings.adopt) return code;
  try {
    const std::optional<JobView> job = JobView::try_open(settings.job.job);
    if (!job) return code;  // the server says so
    PsSettings again;
    again.job = job->info().config;
    settings = again;
  } catch (const Error& error) {
    return fail("ps_shm", kFailed, error.what());
  }
  return parse_ps(argc, argv, settings);  // what is given, over what the job has
}

std::optional<int> parse(int argc, char** argv, WorkerSettings& settings) {
  CommandLine line(
      {.name = "worker_shm",
       .taker = config::kWorker,
       .purpose = "A worker of a job: pulls parameters, computes gradients, pushes them back.",
       .examples = {{"worker_shm --job demo", "trains the embedded digits with the others of the job"},
                    {"worker_shm --job demo --rank 1 --data fashion-mnist --batch 64", "other data, as worker 1"},
                    {"worker_shm --standalone --steps 2000", "the same model in one process, with no ps"}}});
  line.add(worker_options(), settings);
  return line.parse(argc, argv, [&] {
    check_environment("worker_shm");
    if (settings.standalone && settings.training.is_count())
      throw Error("--standalone: model count needs a ps; choose --model " +
                  train::model_names(train::ModelKind::kDense));
    if (settings.standalone && settings.device.must_be_gpu())
      throw Error("--device: a GPU's worker needs a ps; leave --standalone out, or choose --device cpu");
    if (settings.alone.job.empty() && !settings.standalone) throw Error("--job: name the job to work for");
    if (!settings.standalone) check_job_settings(line);
    const bool restores = settings.training.on_nan == OnNan::kRestore;
    if (!settings.standalone && !restores && line.was_typed("checkpoint-dir"))
      throw Error(
          "--checkpoint-dir: the ps keeps the job; give it to ps_shm, or to a worker with --standalone or --on-nan "
          "restore");
    if (settings.standalone && restores)
      throw Error("--on-nan restore: of the workers of a job; with --standalone choose --on-nan stop, and begin again");
    if (settings.standalone) check_checkpoint(settings.checkpoint);
    if (!settings.standalone && settings.training.epochs != 0)
      throw Error("--epochs: the job's ps says when it ends, by --steps; of launch_shm and --standalone only");
    check_evaluation(line, settings);
    check_summary(settings.summary);
    if (!settings.summary.dir.empty() && settings.training.is_count())
      throw Error("--summary-dir: model count has no loss and no gradients; give it to the ps");
    complete_training(line, settings.training);
    check_on_nan(settings.training, settings.checkpoint);
    check_sparse_device(settings.training, settings.device);
    if (settings.standalone && settings.training.sparse.share_data)
      throw Error("--share-data: of the workers of a job; a process alone has nobody to share with");
    if (settings.standalone) {
      complete_sparse_job(line, settings.training, settings.alone);
      check_hyper_parameters(line, settings.alone.optimizer);
    }
    look_for_rank(settings.rank);
  });
}

namespace {

std::optional<int> parse_launch(int argc, char** argv, LaunchSettings& settings, bool is_recorded) {
  if (argc == 2 && std::string(argv[1]) == "--help-markdown") {
    write_out(options_page());
    return 0;
  }
  for (int i = 1; i < argc && settings.program.empty(); ++i) {
    if (std::string_view(argv[i]) != "--") continue;
    settings.program.assign(argv + i + 1, argv + argc);
    if (settings.program.empty()) return fail("launch_shm", kWrongUsage, "--: name a program behind it");
    argc = i;
  }
  CommandLine line(
      {.name = "launch_shm",
       .taker = config::kLaunch,
       .purpose =
           "Starts one ps and its workers on this machine, shows their progress and a summary. A program behind -- "
           "takes the place of worker_shm: launch_shm --workers 4 -- python train.py",
       .examples = {
           {"launch_shm", "trains the embedded digits with three workers"},
           {"launch_shm --mode sync --workers 4 --optimizer adam", "each step applies the mean of four gradients"},
           {"launch_shm --model logistic --data zipf:1000x5000 --json",
            "a sparse model on made-up data; one JSON object"}}});
  line.add(launch_options(), settings);
  settings.job_arguments = arguments_of_job(argc, argv);
  return line.parse(argc, argv, [&] {
    if (!is_recorded) check_environment("launch_shm");
    if (!settings.replay.empty() && !is_recorded) {
      for (const config::Setting<LaunchSettings>& row : launch_options())
        if (line.was_given(row.name) && !is_of_replay(row.name))
          throw Error(fmt::format("{}: --replay has its settings from the record; leave it out", option_of(row.name)));
      if (!settings.program.empty()) throw Error("--replay: of worker_shm; leave the program behind -- out");
    }
    if (settings.ps.job.job.empty()) settings.ps.job.job = default_job_name();
    if (!settings.program.empty()) {
      check_recording(settings);
      if (!settings.trace.empty()) throw Error("--trace: of worker_shm; leave the program behind -- out");
      return complete_program(line, settings);
    }
    complete_training(line, settings.training);
    if (settings.training.is_sparse() && line.was_given("layout") && settings.ps.job.layout == Layout::kVersioned)
      throw Error(fmt::format("--layout versioned: the rows of model {} change where they lie; choose --layout inplace",
                              settings.training.model));
    complete_sparse_job(line, settings.training, settings.ps.job);
    check_sparse_device(settings.training, settings.device);
    for (const auto& [rank, device] : settings.device_of_rank) check_sparse_device(settings.training, device);
    if (settings.training.push_every > 1 && !line.was_given("optimizer"))
      settings.ps.job.optimizer.rule = UpdateRule::kAdd;
    check_hyper_parameters(line, settings.ps.job.optimizer);
    if (settings.evaluate_every.is_given()) {
      if (settings.training.is_count())
        throw Error("--evaluate-every: count has no loss; choose --model " +
                    train::model_names(train::ModelKind::kDense));
      if (settings.ps.publish.name.empty()) {
        settings.ps.publish.name = settings.ps.job.job;
        if (!line.was_given("publish-every")) settings.ps.publish.every = settings.evaluate_every;
      }
    }
    check_publish(settings.ps);
    check_checkpoint(settings.ps.checkpoint);
    check_summary(settings.ps.summary);
    check_on_nan(settings.training, settings.ps.checkpoint);
    make_room_for_elastic(settings.ps.job);
    check(settings.ps.job);
    check_quorum(settings.ps.job);
    check_ranks("--delay", settings.delay_of_rank, settings.ps.job);
    check_ranks("--device", settings.device_of_rank, settings.ps.job);
    check_ranks("--wire", settings.wire_of_rank, settings.ps.job);
    if (settings.curve_points != 0 && settings.training.is_count())
      throw Error("--curve: count has no loss; choose --model " + train::model_names(train::ModelKind::kDense));
    if (settings.ps.job.optimizer.rule == UpdateRule::kAdd && settings.training.is_count() &&
        settings.training.push_every > 1)
      throw Error("--push-every: count has nothing to train; choose --model " +
                  train::model_names(train::ModelKind::kDense));
    check_recording(settings);
    if (!settings.trace.empty() && settings.training.is_count())
      throw Error("--trace: count has no phases; choose --model " + train::model_names(train::ModelKind::kDense));
  });
}

}  // namespace

// A replay's settings are those that the record was made with.
std::optional<int> parse(int argc, char** argv, LaunchSettings& settings) {
  const std::optional<int> code = parse_launch(argc, argv, settings, false);
  if (code || settings.replay.empty()) return code;
  try {
    std::vector<std::string> arguments = recorded_arguments(settings.replay);
    arguments.insert(arguments.begin(), argv[0]);
    arguments.insert(arguments.end(), argv + 1, argv + argc);
    for (const std::string& variable : option_variables()) unsetenv(variable.c_str());
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    settings = LaunchSettings();
    return parse_launch(static_cast<int>(pointers.size()), pointers.data(), settings, true);
  } catch (const Error& error) {
    return fail("launch_shm", kFailed, error.what());
  }
}

std::string to_string(Wire wire) { return wire == Wire::kBfloat16 ? "bf16" : "float32"; }

}  // namespace ps::tools
