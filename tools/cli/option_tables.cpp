#include "cli/option_tables.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/command_line.hpp"
#include "config/interval.hpp"
#include "config/job_settings.hpp"
#include "config/values.hpp"

namespace ps_shm::tools {
namespace {

using config::Group;
using config::Setting;
using config::Settings;
using config::Value;

constexpr unsigned kPs = config::kPs, kWorker = config::kWorker, kLaunch = config::kLaunch;
constexpr auto kWorkers = Group::kWorkers, kOutput = Group::kOutput, kRun = Group::kRun;

template <class Struct>
Setting<Struct>& row_of(Settings<Struct>& rows, const std::string& name) {
  return *std::find_if(rows.begin(), rows.end(), [&](const Setting<Struct>& row) { return row.name == name; });
}

// N, or LO..HI of an elastic job: one option for three settings.
Value<JobConfig> workers_or_bounds() {
  Value<JobConfig> value = config::whole(&JobConfig::workers, 1, kMaxWorkers);
  value.form = "N|LO..HI";
  value.read = [](JobConfig& job, const std::string& text) {
    const auto dots = text.find("..");
    if (dots == std::string::npos && text.find('-', 1) != std::string::npos)
      throw Error(fmt::format("'{}' is not a number; a range is written LO..HI, such as 2..4", text));
    job.workers = static_cast<std::uint32_t>(config::read_whole(text.substr(0, dots), 1, kMaxWorkers));
    job.elastic_min = job.elastic_max = 0;
    if (dots == std::string::npos) return;
    job.elastic_min = job.workers;
    job.elastic_max = static_cast<std::uint32_t>(config::read_whole(text.substr(dots + 2), 1, kMaxWorkers));
    if (job.elastic_max < job.elastic_min)
      throw Error(fmt::format("'{}' has no number in it; the smaller one comes first, as in 2..4", text));
  };
  value.write = config::workers_text;
  return value;
}

// N, or auto, which is kept as 0.
Value<LaunchSettings> workers_or_auto() {
  using L = LaunchSettings;
  Value<L> value = config::whole(&L::workers_per_process, 1, kMaxWorkers);
  value.form = "N|auto";
  value.read = [](L& in, const std::string& text) {
    in.workers_per_process = text == "auto" ? 0 : static_cast<std::uint32_t>(config::read_whole(text, 1, kMaxWorkers));
  };
  value.check = [](const L&) {};
  value.write = [](const L& in) {
    return in.workers_per_process == 0 ? "auto" : fmt::to_string(in.workers_per_process);
  };
  return value;
}

// A program that knows the data also accepts a schedule in epochs: `training` keeps its text until it can be resolved.
template <class Struct>
void take_epochs(Settings<Struct>& rows, TrainingSettings& (*training_of)(Struct&), JobConfig& (*job_of)(Struct&)) {
  Setting<Struct>& row = row_of(rows, "lr-schedule");
  row.meaning += "; epoch:DECAY decays once per epoch";
  row.value.read = [=](Struct& in, const std::string& text) {
    training_of(in).epoch_schedule = is_epoch_schedule(text) ? text : "";
    job_of(in).optimizer.schedule = resolve_schedule(text, 1);
  };
}

// 5ms, 10x, or either with @FRACTION.
train::Delay read_delay(const std::string& text) {
  train::Delay delay;
  const auto at = text.find('@');
  const std::string size = text.substr(0, at);
  if (size.ends_with('x')) {
    delay.factor = config::read_real(size.substr(0, size.size() - 1));
    if (delay.factor < 1 || delay.factor > 1e6) throw Error("a factor must be at least 1 and at most 1000000");
  } else {
    delay.seconds = config::read_seconds(size);
  }
  if (at != std::string::npos) delay.share = config::read_real(text.substr(at + 1));
  if (!(delay.share > 0 && delay.share <= 1)) throw Error("a fraction must be greater than 0 and at most 1");
  return delay.is_none() ? train::Delay() : delay;
}
std::string write_delay(const train::Delay& delay) { return delay.is_none() ? "" : delay.to_string(); }
std::string write_device(const device::DeviceChoice& device) { return to_string(device); }
std::string write_wire(Wire wire) { return wire == Wire::kBFloat16 ? "bfloat16-push" : to_string(wire); }

Wire read_wire(const std::string& text) {
  static const std::vector<std::string> kWords = {write_wire(Wire::kFloat32), write_wire(Wire::kBFloat16)};
  return config::choose("wire", text, kWords) == kWords.front() ? Wire::kFloat32 : Wire::kBFloat16;
}

template <class Part>
Value<WorkerSettings> of_one(Part WorkerSettings::*member, const char* form, Part (*read)(const std::string&),
                             auto write) {
  Value<WorkerSettings> value;
  value.form = form;
  value.read = [=](WorkerSettings& in, const std::string& text) { in.*member = read(text); };
  value.check = [](const WorkerSettings&) {};
  value.write = [=](const WorkerSettings& in) { return write(in.*member); };
  return value;
}

// RANK:SPEC for one rank, all:SPEC or SPEC for all; several separated by commas. In cuda:N, cuda is not a rank.
template <class Part>
Value<LaunchSettings> by_rank(Part LaunchSettings::*of_all, std::map<std::uint32_t, Part> LaunchSettings::*of_rank,
                              const char* form, Part (*read)(const std::string&), auto write) {
  Value<LaunchSettings> value;
  value.form = form;
  value.read = [=](LaunchSettings& in, const std::string& texts) {
    config::for_each_text(texts, [&](const std::string& one) {
      const auto colon = one.find(':');
      const std::string rank = one.substr(0, colon);
      if (colon == std::string::npos || rank == "cuda")
        in.*of_all = read(one);
      else if (rank == "all")
        in.*of_all = read(one.substr(colon + 1));
      else
        (in.*of_rank)[static_cast<std::uint32_t>(config::read_whole(rank, 0, kMaxWorkers - 1))] =
            read(one.substr(colon + 1));
    });
  };
  value.check = [](const LaunchSettings&) {};
  value.write = [=](const LaunchSettings& in) {
    std::string texts = write(in.*of_all);
    for (const auto& [rank, one] : in.*of_rank)
      texts += fmt::format("{}{}:{}", texts.empty() ? "" : ",", rank, write(one));
    return texts;
  };
  return value;
}

const Settings<SummarySettings>& summary_settings() {
  using S = SummarySettings;
  constexpr unsigned kAll = kPs | kWorker | kLaunch;
  static const Settings<S> kRows = {
      {"summary-dir", config::text(&S::dir, "DIR"), kOutput, kAll,
       "write TensorBoard event files to this folder, with a subfolder for the ps, each worker and the test"},
      {"summary-every", config::interval(&S::every), kOutput, kAll,
       "--summary-dir: interval between summaries; one more is written at the end"},
  };
  return kRows;
}

}  // namespace

namespace {

const Settings<CheckpointSettings>& checkpoint_options() {
  using C = CheckpointSettings;
  constexpr unsigned kAll = kPs | kWorker | kLaunch;
  // clang-format off
  static const Settings<C> kRows = {
      {"checkpoint-dir", config::text(&C::dir, "DIR"), kRun, kAll,
       "write checkpoints to this folder, and resume from the newest one that it already has",
       {.otherwise = "no checkpoints", .common = kPs | kLaunch}},
      {"checkpoint-every", config::interval(&C::every), kRun, kAll,
       "--checkpoint-dir: interval between checkpoints; one more is written at the end, or if the ps is stopped"},
      {"keep-checkpoints", config::whole(&C::keep, 1, config::kAny), kRun, kAll,
       "--checkpoint-dir: number of newest checkpoints to keep"},
      {"keep-best", config::flag(&C::keep_best), kRun, kAll,
       "--checkpoint-dir: also keep the checkpoint with the lowest training loss"},
      {"max-file-bytes", config::bytes_or_none(&C::max_file_bytes), kRun, kAll,
       "--checkpoint-dir: maximum size of a file; larger models are split into several", {.unit = "bytes"}},
      {"fresh-start", config::flag(&C::fresh), kRun, kAll,
       "--checkpoint-dir: start from scratch; the folder must be empty"},
  };
  // clang-format on
  return kRows;
}

}  // namespace

const Settings<PsSettings>& ps_options() {
  using P = PsSettings;
  static const Settings<P> kRows = [] {
    Settings<JobConfig> job = config::job_settings();
    row_of(job, "workers").value = workers_or_bounds();
    row_of(job, "lr-schedule").value.read = [](JobConfig& in, const std::string& text) {
      if (is_epoch_schedule(text))
        throw Error("a ps does not know the data; give step:DECAY:STEPS with the steps of an epoch");
      in.optimizer.schedule = Schedule::parse(text);
    };
    row_of(job, "workers").meaning +=
        "; LO..HI: launch_shm keeps their number within these bounds; with --device cuda or auto the default of "
        "launch_shm "
        "is one for each GPU or MIG instance, times `workers-per-process`";
    row_of(job, "threads").meaning +=
        "; default of launch_shm with --device cuda or auto: cores / workers, on PCIe at most 8";
    row_of(job, "chunk-bytes").meaning +=
        "; the default of launch_shm with --device cuda or auto is gpu";
    using S = PublishSettings;
    const Settings<S> publish = {
        {"publish", config::text(&S::name, "NAME"), kRun, kPs | kLaunch,
         "publish snapshots of all variables under this name, for ps_shm::Subscriber"},
        {"publish-every", config::interval(&S::every), kRun, kPs | kLaunch,
         "--publish: interval between generations; one more is published at the end"},
        {"publish-averages", config::flag(&S::averages), kRun, kPs | kLaunch,
         "--publish: publish the moving averages instead of the values; requires --ema"},
        {"publish-partial", config::flag(&S::partial), kRun, kPs | kLaunch,
         "--publish: publish states with a part of a stopped worker's push, too, marked as such"},
    };
    Settings<P> rows;
    config::add_within(rows, &P::job, job, kPs);
    config::add_within(rows, &P::checkpoint, checkpoint_options(), kPs);
    config::add_within(rows, &P::publish, publish, kPs);
    config::add_within(rows, &P::summary, summary_settings(), kPs);
    // clang-format off
    const Settings<P> own = {
        {"task", config::whole_or_none(&P::task, 0, kMaxTasks - 1), kRun, kPs,
         "serve only this one of the --ps-tasks shards", {.otherwise = "all shards"}},
        {"wait-job", config::wait_limit(&P::wait_job, config::Range::kAmount), kRun, kPs,
         "--task 1 and up: how long to wait for task 0",
         {.unit = "s"}},
        {"keep-segments", config::flag(&P::keep_segments), kRun, kPs | kLaunch,
         "keep the job's segments in /dev/shm at the end, for inspect_shm"},
        {"adopt", config::flag(&P::adopt), kRun, kPs,
         "take over a job whose ps has died, even if no process of it is alive; settings that are not given keep the "
         "job's values",
         {.common = kPs}},
    };
    // clang-format on
    config::append(rows, own);
    return rows;
  }();
  return kRows;
}

namespace {

// clang-format off
Settings<WorkerSettings> of_a_workers_steps() {
  using W = WorkerSettings;
  return {
      {"rank", config::whole_or_none(&W::rank, 0, kMaxWorkers - 1), kWorkers, kWorker,
       "rank of this worker; also read from LOCAL_RANK, RANK and the variables of MPI and SLURM",
       {.otherwise = "a free rank", .common = kWorker}},
      {"workers-per-process", config::whole(&W::workers_per_process, 1, kMaxWorkers), kWorkers, kWorker,
       "run this many workers in this process, which share a CUDA context and die together; `rank` is that of the "
       "first"},
      {"threads", config::whole_or_none(&W::threads, 0, kMaxThreads), kWorkers, kWorker,
       "number of threads that transfer large pulls and pushes; at most --threads of the ps, for which 0 stands",
       {.otherwise = "1; 0 with --device cuda or auto"}},
      {"seed", config::whole_or_none(&W::seed, 0, config::kAny), Group::kData, kWorker, "seed of the data order",
       {.otherwise = "the job's seed"}},
      {"standalone", config::flag(&W::standalone), kRun, kWorker, "train in this process alone, without a ps",
       {.common = kWorker}},
      {"evaluate", config::flag(&W::evaluate), kRun, kWorker,
       "do not train: periodically evaluate the job's model, which its ps must --publish"},
      {"evaluate-every", config::interval(&W::every), kRun, kWorker,
       "--evaluate: interval between evaluations; one more is made at the end"},
      {"publication", config::text(&W::publication, "NAME"), kRun, kWorker, "--evaluate: the publication to read",
       {.otherwise = "the job's name"}},
      {"together", config::flag(&W::together), kWorkers, kWorker,
       "start training only when all N workers of the job have joined"},
      {"delay", of_one(&W::delay, "SPEC", read_delay, write_delay), kWorkers, kWorker,
       "simulate a straggler: before each push, sleep for a time (5ms) or until the step has taken a multiple of its "
       "work (10x); 10x@0.1 does so in a random fraction of the steps"},
      {"device", of_one(&W::device, "cpu|auto|cuda|cuda:N|simulated", device::parse_device, write_device), kWorkers,
       kWorker,
       "where to compute gradients: cpu: on the CPU; auto: on a GPU if there is one; cuda: on a GPU, assigned by "
       "rank; cuda:N: on GPU N; simulated: on a simulated GPU",
       {.common = kWorker}},
      {"wire", of_one(&W::wire, "float32|bfloat16-push", read_wire, write_wire), kWorkers, kWorker,
       "transfer dtype of gradients from a GPU; bfloat16-push: rounded to bfloat16, half the bytes"},
  };
}

Settings<WorkerSettings> of_a_workers_output() {
  using W = WorkerSettings;
  return {
      {"trace", config::text(&W::trace, "FILE"), kOutput, kWorker,
       "write a trace of the steps to this file, for ui.perfetto.dev; at most 300000 spans; with `workers-per-process` a "
       "file for each worker: FILE.0, FILE.1"},
      {"record", config::text(&W::record, "DIR"), kRun, kWorker,
       "record the order of this worker's pulls and pushes in this folder; launch_shm --record does so for all "
       "workers"},
      {"replay", config::text(&W::replay, "DIR"), kRun, kWorker,
       "replay such a recording; launch_shm --replay does so for all workers"},
      {"replay-coordinator", config::text(&W::replay_coordinator, "FILE"), kRun, kWorker,
       "--replay: file of the replay coordinator, which launch_shm creates"},
      {"json", config::flag(&W::json), kOutput, kWorker,
       "print one JSON object to stdout at the end, and all other output to stderr", {.common = kWorker}},
      {"quiet", config::flag(&W::quiet), kOutput, kWorker, "do not print progress reports", {.common = kWorker}},
  };
}
// clang-format on

}  // namespace

const Settings<WorkerSettings>& worker_options() {
  using W = WorkerSettings;
  static const Settings<W> kRows = [] {
    Settings<W> rows;
    config::add_within(rows, &W::alone, config::job_settings(), kWorker);
    config::add_within(rows, &W::checkpoint, checkpoint_options(), kWorker);
    config::add_within(rows, &W::training, training_settings(), kWorker);
    config::add_within(rows, &W::summary, summary_settings(), kWorker);
    take_epochs<W>(
        rows, [](W& in) -> TrainingSettings& { return in.training; }, [](W& in) -> JobConfig& { return in.alone; });
    row_of(rows, "job").traits.otherwise = "required, except with `standalone`";
    config::append(rows, of_a_workers_steps());
    config::append(rows, of_a_workers_output());
    return rows;
  }();
  return kRows;
}

namespace {

// clang-format off
Settings<LaunchSettings> of_each_worker() {
  using L = LaunchSettings;
  return {
      {"delay", by_rank(&L::delay, &L::delay_of_rank, "RANK:SPEC", read_delay, write_delay), kWorkers, kLaunch,
       "simulate a straggler: before each push, worker RANK (or all) sleeps for a time (1:5ms) or until the step has "
       "taken a multiple of its work (1:10x); all:10x@0.1 does so in a random fraction of the steps; may be repeated",
       {.takes_all = true}},
      {"device", by_rank(&L::device, &L::device_of_rank, "[RANK:]cpu|auto|cuda|cuda:N|simulated", device::parse_device,
       write_device), kWorkers, kLaunch,
       "where workers (or worker RANK) compute gradients: cpu: on the CPU; auto: on a GPU if there is one; cuda: on "
       "a GPU, assigned by rank; cuda:N: on GPU N; simulated: on a simulated GPU; cuda,2:cpu excepts rank 2; may be "
       "repeated",
       {.takes_all = true}},
      {"wire", by_rank(&L::wire, &L::wire_of_rank, "[RANK:]float32|bfloat16-push", read_wire, write_wire), kWorkers,
       kLaunch, "transfer dtype of gradients from a GPU; bfloat16-push: rounded to bfloat16, half the bytes; may be repeated",
       {.takes_all = true}},
  };
}

Settings<LaunchSettings> of_results_and_launch() {
  using L = LaunchSettings;
  return {
      {"curve", config::whole_or_none(&L::curve_points, 1, 10'000), kOutput, kLaunch,
       "copy the parameters N times during training and evaluate the copies at the end; --json has loss against time",
       {.otherwise = "none"}},
      {"evaluate-every", config::interval(&L::evaluate_every), kOutput, kLaunch,
       "interval at which a separate process evaluates the model that the ps publishes during training",
       {.otherwise = "only at the end"}},
      {"save", config::text(&L::save, "FILE.safetensors"), kOutput, kLaunch,
       "write the final parameters to this file, and their moving averages to FILE.ema.safetensors"},
      {"report", config::text(&L::report, "FILE.html"), kOutput, kLaunch,
       "write a report of the run to this file: a web page with plots of loss, staleness and the workers' time, the "
       "settings, and the machine",
       {.common = kLaunch}},
      {"trace", config::text(&L::trace, "FILE"), kOutput, kLaunch,
       "write a trace of the workers' steps to this file, for ui.perfetto.dev; at most 300000 spans per worker"},
      {"record", config::text(&L::record, "DIR"), kRun, kLaunch,
       "record the order of pulls and pushes in this folder, for --replay; modes async and ssp only"},
      {"replay", config::text(&L::replay, "DIR"), kRun, kLaunch,
       "run a recorded job again, in the recorded order; the parameters are the same, bit for bit"},
      {"replace", config::flag(&L::replace), kRun, kLaunch,
       "remove a dead job of this name even if it holds a result"},
      {"workers-per-process", workers_or_auto(), kWorkers, kLaunch,
       "run up to this many workers in each process, which share a CUDA context and die together; auto: the workers of "
       "each GPU"},
      {"restart-workers", config::flag(&L::restart_workers), kWorkers, kLaunch,
       "start a replacement for each worker that dies"},
      {"bridge", config::text(&L::bridge, "HOST:PORT/BOXES"), kWorkers, kLaunch,
       "join this box's job with those of other boxes: start python -m ps_shm.bridge beside the workers, and again when "
       "it dies; box 0 is reached at HOST:PORT; more of its options may follow, after spaces: 'box0:29400/3 --box 1 "
       "--wire bfloat16'", {.otherwise = "none"}},
      {"json", config::flag(&L::json), kOutput, kLaunch,
       "print one JSON object to stdout at the end, and all other output to stderr", {.common = kLaunch}},
      {"verbose", config::flag(&L::verbose), kOutput, kLaunch, "show all output of the ps and the workers"},
  };
}
// clang-format on

}  // namespace

const Settings<LaunchSettings>& launch_options() {
  using L = LaunchSettings;
  static const Settings<L> kRows = [] {
    Settings<L> rows;
    config::add_within(rows, &L::ps, ps_options(), kLaunch);
    config::add_within(rows, &L::training, training_settings(), kLaunch);
    take_epochs<L>(
        rows, [](L& in) -> TrainingSettings& { return in.training; }, [](L& in) -> JobConfig& { return in.ps.job; });
    row_of(rows, "job").traits.otherwise = "the user name and a number";
    config::append(rows, of_each_worker());
    config::append(rows, of_results_and_launch());
    return rows;
  }();
  return kRows;
}

}  // namespace ps_shm::tools
