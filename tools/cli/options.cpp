#include "cli/options.hpp"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "cli/command_line.hpp"
#include "cli/option_checks.hpp"
#include "cli/option_names.hpp"
#include "cli/option_tables.hpp"
#include "cli/options_page.hpp"
#include "cli/output.hpp"
#include "cli/recording.hpp"
#include "cli/sparse_options.hpp"
#include "config/job_settings.hpp"
#include "config/spelling.hpp"
#include "config/values.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "train/models/models.hpp"

namespace ps_shm::tools {
namespace {

// Reserves ranks for the maximum number of workers of an elastic job.
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

// A variable of the environment that another launcher sets; empty: it is not set.
std::string_view launcher_variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// Whether a launcher has started processes on several machines, so that its global ranks are not those of this one.
bool has_several_machines() {
  constexpr const char* kAllAndHere[][2] = {{"WORLD_SIZE", "LOCAL_WORLD_SIZE"},
                                            {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                                            {"PMI_SIZE", "MPI_LOCALNRANKS"}};
  for (const auto& [all, here] : kAllAndHere)
    if (!launcher_variable(here).empty() && !launcher_variable(all).empty() &&
        launcher_variable(here) != launcher_variable(all))
      return true;
  for (const char* variable : {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"})  // the first that is set: a step may use fewer
    if (!launcher_variable(variable).empty()) return launcher_variable(variable) != "1";
  return false;
}

// The process's rank on its machine, from the variables set by launchers of other systems. Their global ranks count only
// where all of their processes are on this machine.
void look_for_rank(WorkerSettings& settings) {
  std::vector<const char*> variables = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"};
  if (!has_several_machines()) variables.insert(variables.end(), {"RANK", "PMIX_RANK", "PMI_RANK"});
  for (const char* variable : variables) {
    const std::string text(launcher_variable(variable));
    if (settings.rank || text.empty() || text == "-1") continue;  // PyTorch's -1: this process has no rank
    try {
      settings.rank = static_cast<std::uint32_t>(config::read_whole(text, 0, kMaxWorkers - 1)) *
                      settings.workers_per_process;  // launchers number processes
      settings.rank_variable = variable;
    } catch (const Error& error) {
      throw Error(fmt::format("environment variable {}: {}", variable, error.what()));
    }
  }
}

// Reports variables PS_SHM_* that no program reads. This is not an error, since they may belong to another program.
// Programs started by launch_shm get none of them.
void check_environment(const char* program) {
  const std::vector<std::string> known = option_variables();
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string variable = std::string(*one).substr(0, std::string_view(*one).find('='));
    if (!variable.starts_with("PS_SHM_") || variable.starts_with("PS_SHM_TEST") ||
        std::find(known.begin(), known.end(), variable) != known.end())
      continue;
    fmt::print(stderr, "{}: the environment variable {} does not name an option{}\n", program, variable,
               config::did_you_mean(variable, known));
  }
}

// For workers that run another program: options that only worker_shm uses are refused; in the environment they are
// ignored.
void complete_program(const CommandLine& line, LaunchSettings& settings) {
  const auto refuse = [&](const std::string& name) {
    if (line.was_typed(name))
      throw Error(fmt::format("{}: an option of worker_shm only; the program after -- defines its own training",
                              option_of(name)));
  };
  for (const config::Setting<TrainingSettings>& row : training_settings())
    if (std::string_view(row.name) != "steps") refuse(row.name);
  for (const char* name : {"delay", "wire", "curve", "evaluate-every", "workers-per-process"}) refuse(name);
  if (!settings.training.epoch_schedule.empty())
    throw Error("--lr-schedule: epochs of a program after -- are not known; give step:DECAY:STEPS");
  if (!line.was_given("device"))
    settings.device.kind = device::DeviceChoice::Kind::kAuto;  // each worker uses a GPU if it has one
  TrainingSettings nothing;
  nothing.steps = settings.training.steps;
  settings.training = nothing;
  settings.evaluate_every = {};
  settings.curve_points = 0;
  settings.delay = {};
  settings.delay_of_rank.clear();
  settings.wire = {};
  settings.wire_of_rank.clear();
  settings.workers_per_process = 1;
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
       .purpose = "Runs the parameter server of a job: creates the job in shared memory, monitors its workers, and "
                  "removes it at the end.",
       .examples = {{"ps_shm --job demo --workers 2 --steps 2000", "a job for two workers; ends when both have left"},
                    {"ps_shm --job demo --workers 4 --mode ssp --staleness 4",
                     "no worker gets more than four steps ahead of the slowest"},
                    {"ps_shm --job demo --adopt", "takes over a job whose ps has died"}}});
  line.add(ps_options(), settings);
  return line.parse(argc, argv, [&] {
    if (settings.job.job.empty()) throw Error("--job: give the job a name");
    if (settings.task && *settings.task >= settings.job.ps_tasks)
      throw Error(fmt::format("--task: tasks are 0 to {}; raise --ps-tasks", settings.job.ps_tasks - 1));
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
    if (!job) return code;  // the server reports it
    PsSettings again;
    again.job = job->info().config;
    again.job.restore.clear(), again.job.first_step = 0;  // of its beginning; the checkpoint may be gone
    settings = again;
  } catch (const Error& error) {
    return fail("ps_shm", kFailed, error.what());
  }
  return parse_ps(argc, argv, settings);  // given options override the job's settings
}

std::optional<int> parse(int argc, char** argv, WorkerSettings& settings) {
  CommandLine line(
      {.name = "worker_shm",
       .taker = config::kWorker,
       .purpose = "Runs a worker of a job: pulls parameters, computes gradients, and pushes them to the ps.",
       .examples = {
           {"worker_shm --job demo", "trains on the embedded digits with the job's other workers"},
           {"worker_shm --job demo --rank 1 --data fashion-mnist --batch 64", "trains on other data, as rank 1"},
           {"worker_shm --standalone --steps 2000", "trains the same model in one process, without a ps"}}});
  line.add(worker_options(), settings);
  return line.parse(argc, argv, [&] {
    check_environment("worker_shm");
    if (settings.standalone && settings.device.must_be_gpu())
      throw Error("--device: a worker on a GPU needs a ps; leave --standalone out, or choose --device cpu");
    if (settings.alone.job.empty() && !settings.standalone) throw Error("--job: name the job to work for");
    settings.standalone ? check_standalone(line) : check_job_settings(line);
    if (settings.standalone) settings.workers_per_process = 1;
    const bool restores = settings.training.on_nan == OnNan::kRestore;
    if (!settings.standalone && !restores && line.was_typed("checkpoint-dir"))
      throw Error(
          "--checkpoint-dir: the ps writes the checkpoints; give it to ps_shm, or to a worker with --standalone or "
          "--on-nan "
          "restore");
    if (settings.standalone && restores)
      throw Error(
          "--on-nan restore: only for workers of a job; with --standalone choose --on-nan stop, and start again");
    if (settings.standalone) check_checkpoint(settings.checkpoint);
    if (!settings.standalone && settings.training.epochs != 0)
      throw Error("--epochs: only for launch_shm and --standalone; a job ends after the --steps of its ps");
    check_evaluation(line, settings);
    if (!settings.standalone && settings.training.learns() && line.was_typed("steps"))
      throw Error(
          "--steps: only for launch_shm, --standalone and --model count; a job ends after the --steps of its ps");
    check_summary(settings.summary);
    if (!settings.summary.dir.empty() && !settings.training.learns())
      throw Error("--summary-dir: model count has no loss and no gradients; give it to the ps");
    complete_training(line, settings.training);
    check_on_nan(settings.training, settings.checkpoint);
    check_dtype(settings.training, settings.device);
    if (settings.standalone && settings.training.dtype != DType::kFloat32)
      throw Error("--dtype: a process without a ps trains in float32; leave --standalone out");
    if (settings.standalone && settings.training.sparse.share_data)
      throw Error("--share-data: only for workers of a job; with --standalone there is one process");
    if (settings.standalone) {
      complete_sparse_job(line, settings.training, settings.alone);
      check_hyper_parameters(line, settings.alone.optimizer);
    }
    if (settings.standalone || settings.evaluate) return;
    look_for_rank(settings);
    check_last_rank(settings);
  });
}

namespace {

// Completes and checks the settings of a launch of worker_shm processes.
void complete_launch(const CommandLine& line, LaunchSettings& settings) {
  complete_training(line, settings.training);
  if (settings.training.is_sparse() && line.was_given("layout") && settings.ps.job.layout != Layout::kInplace)
    throw Error(fmt::format("--layout {}: the rows of model {} are updated in place; choose --layout inplace",
                            to_string(settings.ps.job.layout), settings.training.model));
  complete_sparse_job(line, settings.training, settings.ps.job);
  check_dtype(settings.training, settings.device);
  for (const auto& [rank, device] : settings.device_of_rank) check_dtype(settings.training, device);
  if (settings.training.push_every > 1 && !line.was_given("optimizer"))
    settings.ps.job.optimizer.rule = UpdateRule::kAdd;
  check_hyper_parameters(line, settings.ps.job.optimizer);
  check_sum(line, settings.training, settings.ps.job.optimizer);
  if (settings.evaluate_every.is_given()) {
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
  check_workers_per_process(settings);
  check_recording(settings);
}

std::optional<int> parse_launch(int argc, char** argv, LaunchSettings& settings, bool is_recorded) {
  if (argc == 2 && std::string(argv[1]) == "--help-markdown") {
    write_out(options_page());
    return 0;
  }
  for (int i = 1; i < argc && settings.program.empty(); ++i) {
    if (std::string_view(argv[i]) != "--") continue;
    settings.program.assign(argv + i + 1, argv + argc);
    if (settings.program.empty()) return fail("launch_shm", kWrongUsage, "--: name a program after it");
    argc = i;
  }
  CommandLine line(
      {.name = "launch_shm",
       .taker = config::kLaunch,
       .purpose =
           "Starts a parameter server and its workers on this machine, and shows their progress and a summary. A "
           "program after -- replaces worker_shm: launch_shm --workers 4 -- python train.py",
       .examples = {
           {"launch_shm", "trains on the embedded digits with three workers"},
           {"launch_shm --mode sync --workers 4 --optimizer adam", "each step applies the mean of four gradients"},
           {"launch_shm --model logistic --data zipf:1000x5000 --json",
            "trains a sparse model on synthetic data; prints JSON"}}});
  line.add(launch_options(), settings);
  settings.job_arguments = arguments_of_job(argc, argv);
  return line.parse(argc, argv, [&] {
    if (!is_recorded) check_environment("launch_shm");
    if (!settings.replay.empty() && !is_recorded) {
      for (const config::Setting<LaunchSettings>& row : launch_options())
        if (line.was_given(row.name) && !is_of_replay(row.name))
          throw Error(
              fmt::format("{}: --replay takes its settings from the recording; leave it out", option_of(row.name)));
      if (!settings.program.empty()) throw Error("--replay: for worker_shm only; leave out the program after --");
    }
    if (settings.ps.job.job.empty()) settings.ps.job.job = default_job_name();
    settings.one_worker_per_gpu = settings.device.may_be_cuda() && !settings.device.index &&
                                  settings.device_of_rank.empty() && !line.was_given("workers");
    settings.default_threads = !line.was_given("threads");
    settings.default_chunks = !line.was_given("chunk-bytes");
    check_results(settings);
    if (!settings.program.empty()) {
      check_recording(settings);
      if (!settings.trace.empty()) throw Error("--trace: for worker_shm only; leave out the program after --");
      return complete_program(line, settings);
    }
    complete_launch(line, settings);
  });
}

}  // namespace

// The settings of a replay are those of the recorded run.
std::optional<int> parse(int argc, char** argv, LaunchSettings& settings) {
  const std::optional<int> code = parse_launch(argc, argv, settings, false);
  settings.command.assign(argv, argv + argc);
  if (code || settings.replay.empty()) return code;
  try {
    std::vector<std::string> arguments = recorded_arguments(settings.replay);
    arguments.insert(arguments.begin(), argv[0]);
    arguments.insert(arguments.end(), argv + 1, argv + argc);
    for (const std::string& variable : option_variables()) unsetenv(variable.c_str());
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    settings = LaunchSettings();
    const std::optional<int> recorded =
        parse_launch(static_cast<int>(pointers.size()), pointers.data(), settings, true);
    settings.command.assign(argv, argv + argc);
    return recorded;
  } catch (const Error& error) {
    return fail("launch_shm", kFailed, error.what());
  }
}

}  // namespace ps_shm::tools
