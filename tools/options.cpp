#include "options.hpp"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "command_line.hpp"
#include "ps/errors.hpp"
#include "ps/job_view.hpp"
#include "sparse_options.hpp"

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

// 5ms, 10x, or either with @SHARE.
train::Delay read_delay(const std::string& text) {
  train::Delay delay;
  const auto at = text.find('@');
  const std::string size = text.substr(0, at);
  if (size.ends_with('x')) {
    delay.factor = read_real(size.substr(0, size.size() - 1));
    if (delay.factor < 1 || delay.factor > 1e6) throw Error("a factor must be at least 1 and at most 1000000");
  } else {
    delay.seconds = read_seconds(size);
  }
  if (at == std::string::npos) return delay;
  delay.share = read_real(text.substr(at + 1));
  if (!(delay.share > 0 && delay.share <= 1)) throw Error("a share must be greater than 0 and at most 1");
  return delay;
}

Wire read_wire(const std::string& text) {
  for (const Wire wire : {Wire::kFloat32, Wire::kBfloat16})
    if (text == to_string(wire)) return wire;
  throw Error(fmt::format("unknown wire '{}'; expected float32|bf16", text));
}

// RANK:SPEC of one rank, all:SPEC or SPEC of all; several with commas between them. cuda:N is a SPEC, not a rank's.
template <class Value>
void read_by_rank(std::string text, Value& of_all, std::map<std::uint32_t, Value>& of_rank,
                  Value (*read)(const std::string& text)) {
  for (text += ','; !text.empty(); text.erase(0, text.find(',') + 1)) {
    const std::string one = text.substr(0, text.find(','));
    const auto colon = one.find(':');
    const std::string rank = one.substr(0, colon);
    if (colon == std::string::npos || rank == "cuda")
      of_all = read(one);
    else if (rank == "all")
      of_all = read(one.substr(colon + 1));
    else
      of_rank[static_cast<std::uint32_t>(read_whole(rank, 0, kMaxWorkers - 1))] = read(one.substr(colon + 1));
  }
}

template <class Value>
void check_ranks(const char* option, const std::map<std::uint32_t, Value>& of_rank, const JobConfig& job) {
  const std::uint32_t most = std::max(job.workers, job.elastic_max);
  if (!of_rank.empty() && of_rank.rbegin()->first >= most)
    throw Error(fmt::format("{}: there is no worker {}; ranks are 0 to {}", option, of_rank.rbegin()->first, most - 1));
}

// What launchers of other systems say of a process's place on its machine.
void look_for_rank(std::optional<std::uint32_t>& rank) {
  for (const char* variable : {"RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}) {
    const char* text = std::getenv(variable);
    if (rank || text == nullptr || *text == '\0') continue;
    try {
      rank = static_cast<std::uint32_t>(read_whole(text, 0, kMaxWorkers - 1));
    } catch (const Error& error) {
      throw Error(fmt::format("environment variable {}: {}", variable, error.what()));
    }
  }
}

std::optional<int> parse_ps(int argc, char** argv, PsSettings& settings) {
  CommandLine line("ps_shm",
                   "The ps of a job: creates it in shared memory, watches its workers, removes it at the end.");
  line.add_job_name(settings.job.job, "the job's name (required)");
  line.add_job(settings);
  line.add_whole("--steps", settings.job.steps, 1, kAny, "the global step at which the job is finished (no limit)");
  line.add_whole("--task", settings.task, 0, kMaxTasks - 1, "serve this shard alone, of --ps-tasks (all of them)");
  line.add_seconds("--wait-job", settings.wait_job_seconds, "--task 1 and up: how long to wait for task 0 (60s)");
  line.add_flag(
      "--adopt", settings.adopt,
      "take over a job whose ps has died, also where nobody of it is alive; settings that are not given are the "
      "job's");
  return line.parse(argc, argv, [&] {
    if (settings.job.job.empty()) throw Error("--job: give the job a name");
    if (settings.task && *settings.task >= settings.job.tasks)
      throw Error(fmt::format("--task: tasks are 0 to {}; raise --ps-tasks", settings.job.tasks - 1));
    if (!line.epoch_schedule().empty())
      throw Error("--lr-schedule epoch: a ps does not know the data; give step:DECAY:STEPS with the steps of an epoch");
    make_room_for_elastic(settings.job);
    check(settings.job);
  });
}

}  // namespace

std::optional<int> parse(int argc, char** argv, PsSettings& settings) {
  const std::optional<int> code = parse_ps(argc, argv, settings);
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
  CommandLine line("worker_shm", "A worker of a job: pulls parameters, computes gradients, pushes them back.");
  line.add_job_name(settings.alone.job, "the job to work for (required, unless --standalone)");
  line.add_training(settings.training);
  line.add_whole("--steps", settings.training.steps, 1, kAny,
                 "count: adds (1000); --standalone: steps (6000; for other data than digits 30000)");
  line.add_whole("--rank", settings.rank, 0, kMaxWorkers - 1,
                 "this worker's number (also from RANK, LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_RANK, SLURM_LOCALID; else a "
                 "free one)");
  line.add_whole("--seed", settings.seed, 0, kAny, "of the data order (the job's)");
  line.add(
      "--delay", "SPEC",
      "slow every step down, before the push: by a time (5ms) or to so many times what its work took (10x); either "
      "in a share of the steps, drawn at random (10x@0.1)",
      [&settings](const std::string& text) { settings.delay = read_delay(text); });
  line.add(
      "--device", "cpu|auto|cuda|cuda:N",
      "where gradients are computed: on the CPU, on a GPU if there is one, on a GPU, on GPU N; GPUs are shared out "
      "by rank (cpu)",
      [&settings](const std::string& text) { settings.device = device::parse_device(text); });
  line.add("--wire", "float32|bf16", "how a gradient's elements travel from a GPU to host memory (float32)",
           [&settings](const std::string& text) { settings.wire = read_wire(text); });
  line.add_flag("--standalone", settings.standalone, "train in this process alone, with no ps");
  line.add_whole("--threads", settings.threads, 1, kMaxThreads,
                 "threads that share large pulls and pushes; at most the ps's --threads (1)");
  line.add_optimizer(settings.alone.optimizer);
  line.add_flag("--json", settings.json, "print one JSON object on stdout at the end, all else on stderr");
  line.add_flag("--together", settings.together, "begin when the job's N workers have joined, not before");
  line.add_flag("--quiet", settings.quiet, "print no report lines");
  return line.parse(argc, argv, [&] {
    if (settings.standalone && settings.training.is_count())
      throw Error("--standalone: model count needs a ps; choose --model softmax or mlp");
    if (settings.standalone && settings.device.kind == device::DeviceChoice::Kind::kCuda)
      throw Error("--device: a GPU's worker needs a ps; leave --standalone out, or choose --device cpu");
    if (settings.alone.job.empty() && !settings.standalone) throw Error("--job: name the job to work for");
    if (!settings.standalone && settings.training.epochs != 0)
      throw Error("--epochs: the job's ps says when it ends, by --steps; of launch_shm and --standalone only");
    complete_training(line, settings.training);
    check_sparse_device(settings.training, settings.device);
    if (settings.standalone && settings.training.sparse.share_data)
      throw Error("--share-data: of the workers of a job; a process alone has nobody to share with");
    if (settings.standalone) complete_sparse_job(line, settings.training, settings.alone);
    look_for_rank(settings.rank);
  });
}

std::optional<int> parse(int argc, char** argv, LaunchSettings& settings) {
  settings.ps.job.workers = 3;
  CommandLine line("launch_shm", "Starts one ps and its workers on this machine, shows their progress and a summary.");
  line.add_job_name(settings.ps.job.job, "the job's name (made of the user's name and a number)");
  line.add_job(settings.ps);
  line.add_whole("--steps", settings.training.steps, 1, kAny,
                 "global steps (6000; for other data than digits 30000); count: adds of each worker (1000)");
  line.add_training(settings.training);
  line.add_joined(
      "--delay", "RANK:SPEC",
      "make worker RANK (or all) a straggler: each step takes a time longer (1:5ms) or so many times its work "
      "(1:10x); "
      "either in a share of the steps, drawn at random (all:10x@0.1); may be repeated",
      [&settings](const std::string& text) { read_by_rank(text, settings.delay, settings.delay_of_rank, read_delay); });
  line.add_joined(
      "--device", "[RANK:]cpu|auto|cuda|cuda:N",
      "where workers (or worker RANK) compute gradients: on the CPU, on a GPU if there is one, on a GPU, on GPU N; "
      "GPUs are shared out by rank; cuda,2:cpu for all but worker 2; may be repeated (cpu)",
      [&settings](const std::string& text) {
        read_by_rank(text, settings.device, settings.device_of_rank, device::parse_device);
      });
  line.add_joined(
      "--wire", "[RANK:]float32|bf16",
      "how a gradient's elements travel from a GPU to host memory; may be repeated (float32)",
      [&settings](const std::string& text) { read_by_rank(text, settings.wire, settings.wire_of_rank, read_wire); });
  line.add_whole(
      "--curve", settings.curve_points, 1, 10'000,
      "copy the parameters N times while the job trains, evaluate them at the end: loss against time in --json "
      "(none)");
  line.add_flag("--restart-workers", settings.restart_workers, "start another worker in the place of one that died");
  line.add_flag("--json", settings.json, "print one JSON object on stdout at the end, all else on stderr");
  line.add_flag("--verbose", settings.verbose, "show all that ps and workers print");
  return line.parse(argc, argv, [&] {
    if (settings.ps.job.job.empty()) settings.ps.job.job = default_job_name();
    complete_training(line, settings.training);
    if (settings.training.is_sparse() && line.was_given("--layout") && settings.ps.job.layout == Layout::kVersioned)
      throw Error(fmt::format("--layout versioned: the rows of model {} change where they lie; choose --layout inplace",
                              settings.training.model));
    complete_sparse_job(line, settings.training, settings.ps.job);
    check_sparse_device(settings.training, settings.device);
    for (const auto& [rank, device] : settings.device_of_rank) check_sparse_device(settings.training, device);
    if (settings.training.push_every > 1 && !line.was_given("--optimizer"))
      settings.ps.job.optimizer.rule = UpdateRule::kAdd;
    make_room_for_elastic(settings.ps.job);
    check(settings.ps.job);
    check_ranks("--delay", settings.delay_of_rank, settings.ps.job);
    check_ranks("--device", settings.device_of_rank, settings.ps.job);
    check_ranks("--wire", settings.wire_of_rank, settings.ps.job);
    if (settings.curve_points != 0 && settings.training.is_count())
      throw Error("--curve: count has no loss; choose --model softmax or mlp");
    if (settings.ps.job.optimizer.rule == UpdateRule::kAdd && settings.training.is_count() &&
        settings.training.push_every > 1)
      throw Error("--push-every: count has nothing to train; choose --model softmax or mlp");
  });
}

std::string to_string(Wire wire) { return wire == Wire::kBfloat16 ? "bf16" : "float32"; }

int fail(const char* program, int code, std::string message) {
  for (char& c : message)
    if (c == '\n') c = ' ';
  message = fmt::format("{}: {}\n", program, message);
  std::fputs(message.c_str(), stderr);
  return code;
}

}  // namespace ps::tools
