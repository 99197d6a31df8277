#include "option_tables.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "command_line.hpp"
#include "config/interval.hpp"
#include "config/job_settings.hpp"
#include "config/values.hpp"

namespace ps::tools {
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

// N, or LO..HI of an elastic job: one option says three settings.
Value<JobConfig> workers_or_bounds() {
  Value<JobConfig> value = config::whole(&JobConfig::workers, 1, kMaxWorkers);
  value.form = "N|LO..HI";
  value.read = [](JobConfig& job, const std::string& text) {
    const auto dots = text.find("..");
    job.workers = static_cast<std::uint32_t>(config::read_whole(text.substr(0, dots), 1, kMaxWorkers));
    job.elastic_min = job.elastic_max = 0;
    if (dots == std::string::npos) return;
    job.elastic_min = job.workers;
    job.elastic_max = static_cast<std::uint32_t>(config::read_whole(text.substr(dots + 2), job.workers, kMaxWorkers));
  };
  value.write = config::workers_text;
  return value;
}

// A program that knows the data also takes a schedule in epochs: `training` keeps its text, to be resolved.
template <class Struct>
void take_epochs(Settings<Struct>& rows, TrainingSettings& (*training_of)(Struct&), JobConfig& (*job_of)(Struct&)) {
  Setting<Struct>& row = row_of(rows, "lr-schedule");
  row.meaning += "; or epoch:DECAY, once an epoch";
  row.value.read = [=](Struct& in, const std::string& text) {
    training_of(in).epoch_schedule = is_epoch_schedule(text) ? text : "";
    job_of(in).optimizer.schedule = resolve_schedule(text, 1);
  };
}

// 5ms, 10x, or either with @SHARE.
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
  if (!(delay.share > 0 && delay.share <= 1)) throw Error("a share must be greater than 0 and at most 1");
  return delay.is_none() ? train::Delay() : delay;
}
std::string write_delay(const train::Delay& delay) { return delay.is_none() ? "" : delay.to_string(); }
std::string write_device(const device::DeviceChoice& device) { return to_string(device); }
std::string write_wire(Wire wire) { return to_string(wire); }

Wire read_wire(const std::string& text) {
  for (const Wire wire : {Wire::kFloat32, Wire::kBfloat16})
    if (text == to_string(wire)) return wire;
  throw Error(fmt::format("unknown wire '{}'; expected float32|bf16", text));
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

// RANK:SPEC of one rank, all:SPEC or SPEC of all; several with commas between them. cuda:N is a SPEC, not a rank's.
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
       "write event files for TensorBoard there: a folder each for the ps, every worker and the test"},
      {"summary-every", config::interval(&S::every), kOutput, kAll,
       "--summary-dir: how often, and once more at the end"},
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
       "keep the run there, and go on with the newest checkpoint that is there already",
       {.otherwise = "none is kept", .common = kPs | kLaunch}},
      {"checkpoint-every", config::interval(&C::every), kRun, kAll,
       "--checkpoint-dir: how often; also at the end, and when the ps is asked to end"},
      {"keep", config::whole(&C::keep, 1, config::kAny), kRun, kAll, "--checkpoint-dir: how many, the newest"},
      {"keep-best", config::flag(&C::keep_best), kRun, kAll,
       "--checkpoint-dir: and the one with the smallest training loss"},
      {"max-file-bytes", config::bytes_or_none(&C::max_file_bytes), kRun, kAll,
       "--checkpoint-dir: larger models are written as several files", {.unit = "bytes"}},
      {"fresh", config::flag(&C::fresh), kRun, kAll,
       "--checkpoint-dir: begin anew; the folder must be empty"},
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
    row_of(job, "workers").meaning += "; LO..HI: launch_shm keeps their number within these";
    using S = PublishSettings;
    const Settings<S> publish = {
        {"publish", config::text(&S::name, "NAME"), kRun, kPs | kLaunch,
         "publish all variables under this name, each time from one snapshot, for ps::Subscriber"},
        {"publish-every", config::interval(&S::every), kRun, kPs | kLaunch,
         "--publish: how often, and once more at the end"},
        {"publish-averages", config::flag(&S::averages), kRun, kPs | kLaunch,
         "--publish: moving averages in the place of the values; needs --ema"},
    };
    Settings<P> rows;
    config::add_within(rows, &P::job, job, kPs);
    config::add_within(rows, &P::checkpoint, checkpoint_options(), kPs);
    config::add_within(rows, &P::publish, publish, kPs);
    config::add_within(rows, &P::summary, summary_settings(), kPs);
    // clang-format off
    const Settings<P> own = {
        {"task", config::whole_or_none(&P::task, 0, kMaxTasks - 1), kRun, kPs,
         "serve this shard alone, of --ps-tasks", {.otherwise = "all of them"}},
        {"wait-job", config::seconds(&P::wait_job_seconds), kRun, kPs, "--task 1 and up: how long to wait for task 0",
         {.unit = "s"}},
        {"keep-segments", config::flag(&P::keep_segments), kRun, kPs | kLaunch,
         "leave the job in /dev/shm at the end, for inspect_shm"},
        {"adopt", config::flag(&P::adopt), kRun, kPs,
         "take over a job whose ps has died, also where nobody of it is alive; settings that are not given are the "
         "job's",
         {.common = kPs}},
    };
    // clang-format on
    rows.insert(rows.end(), own.begin(), own.end());
    return rows;
  }();
  return kRows;
}

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
    row_of(rows, "job").traits.otherwise = "none: it is needed, but for `standalone`";
    // clang-format off
    const Settings<W> own = {
        {"rank", config::whole_or_none(&W::rank, 0, kMaxWorkers - 1), kWorkers, kWorker,
         "this worker's number; also from RANK, LOCAL_RANK, and what MPI and SLURM set",
         {.otherwise = "a free one", .common = kWorker}},
        {"threads", config::whole(&W::threads, 1, kMaxThreads), kWorkers, kWorker,
         "threads that share large pulls and pushes; at most the ps's --threads"},
        {"seed", config::whole_or_none(&W::seed, 0, config::kAny), Group::kData, kWorker, "of the data order",
         {.otherwise = "the job's"}},
        {"standalone", config::flag(&W::standalone), kRun, kWorker, "train in this process alone, with no ps",
         {.common = kWorker}},
        {"evaluate", config::flag(&W::evaluate), kRun, kWorker,
         "do not train: test the job's model again and again, as its ps publishes it (--publish)"},
        {"every", config::interval(&W::every), kRun, kWorker, "--evaluate: how often, and once more at the end"},
        {"publication", config::text(&W::publication, "NAME"), kRun, kWorker, "--evaluate: which one to read",
         {.otherwise = "the job's name"}},
        {"together", config::flag(&W::together), kWorkers, kWorker,
         "begin when the job's N workers have joined, not before"},
        {"delay", of_one(&W::delay, "SPEC", read_delay, write_delay), kWorkers, kWorker,
         "slow every step down, before the push: by a time (5ms) or to so many times what its work took (10x); "
         "either in a share of the steps, drawn at random (10x@0.1)"},
        {"device", of_one(&W::device, "cpu|auto|cuda|cuda:N|simulated", device::parse_device, write_device), kWorkers,
         kWorker,
         "where gradients are computed: on the CPU, on a GPU if there is one, on a GPU, on GPU N; GPUs are shared "
         "out by rank",
         {.common = kWorker}},
        {"wire", of_one(&W::wire, "float32|bf16", read_wire, write_wire), kWorkers, kWorker,
         "how a gradient's elements travel from a GPU to host memory"},
        {"trace", config::text(&W::trace, "FILE"), kOutput, kWorker,
         "write there what the steps' time goes to, for ui.perfetto.dev; up to 300000 spans"},
        {"record", config::text(&W::record, "DIR"), kRun, kWorker,
         "write there in what order this worker pulls and pushes; launch_shm --record does that for all of them"},
        {"replay", config::text(&W::replay, "DIR"), kRun, kWorker,
         "go by such a record; launch_shm --replay does that for all of them"},
        {"replay-board", config::text(&W::replay_board, "FILE"), kRun, kWorker,
         "--replay: what the job's workers share, which launch_shm makes"},
        {"json", config::flag(&W::json), kOutput, kWorker,
         "print one JSON object on stdout at the end, all else on stderr", {.common = kWorker}},
        {"quiet", config::flag(&W::quiet), kOutput, kWorker, "print no report lines", {.common = kWorker}},
    };
    // clang-format on
    rows.insert(rows.end(), own.begin(), own.end());
    return rows;
  }();
  return kRows;
}

const Settings<LaunchSettings>& launch_options() {
  using L = LaunchSettings;
  static const Settings<L> kRows = [] {
    Settings<L> rows;
    config::add_within(rows, &L::ps, ps_options(), kLaunch);
    config::add_within(rows, &L::training, training_settings(), kLaunch);
    take_epochs<L>(
        rows, [](L& in) -> TrainingSettings& { return in.training; }, [](L& in) -> JobConfig& { return in.ps.job; });
    row_of(rows, "job").traits.otherwise = "the user's name and a number";
    // clang-format off
    const Settings<L> own = {
        {"delay", by_rank(&L::delay, &L::delay_of_rank, "RANK:SPEC", read_delay, write_delay), kWorkers, kLaunch,
         "make worker RANK (or all) a straggler: each step takes a time longer (1:5ms) or so many times its work "
         "(1:10x); either in a share of the steps, drawn at random (all:10x@0.1); may be repeated",
         {.takes_all = true}},
        {"device", by_rank(&L::device, &L::device_of_rank, "[RANK:]cpu|auto|cuda|cuda:N|simulated", device::parse_device,
         write_device), kWorkers, kLaunch,
         "where workers (or worker RANK) compute gradients: on the CPU, on a GPU if there is one, on a GPU, on GPU "
         "N; GPUs are shared out by rank; cuda,2:cpu for all but worker 2; may be repeated",
         {.takes_all = true}},
        {"wire", by_rank(&L::wire, &L::wire_of_rank, "[RANK:]float32|bf16", read_wire, write_wire), kWorkers, kLaunch,
         "how a gradient's elements travel from a GPU to host memory; may be repeated", {.takes_all = true}},
        {"curve", config::whole_or_none(&L::curve_points, 1, 10'000), kOutput, kLaunch,
         "copy the parameters N times while the job trains, evaluate them at the end: loss against time in --json",
         {.otherwise = "none"}},
        {"evaluate-every", config::interval(&L::evaluate_every), kOutput, kLaunch,
         "test the model so often while it trains, in a process of its own, by what the ps publishes",
         {.otherwise = "only at the end"}},
        {"save", config::text(&L::save, "FILE.safetensors"), kOutput, kLaunch,
         "write the parameters there at the end, their averages to FILE.ema.safetensors"},
        {"trace", config::text(&L::trace, "FILE"), kOutput, kLaunch,
         "write there what the workers' time goes to, for ui.perfetto.dev; up to 300000 spans of each"},
        {"record", config::text(&L::record, "DIR"), kRun, kLaunch,
         "write there in what order the workers pull and push, for --replay; modes async and ssp"},
        {"replay", config::text(&L::replay, "DIR"), kRun, kLaunch,
         "run a recorded job again, in the recorded order: the same parameters, bit for bit"},
        {"replace", config::flag(&L::replace), kRun, kLaunch,
         "reclaim a dead job of that name although it holds a result"},
        {"restart-workers", config::flag(&L::restart_workers), kWorkers, kLaunch,
         "start another worker in the place of one that died"},
        {"json", config::flag(&L::json), kOutput, kLaunch,
         "print one JSON object on stdout at the end, all else on stderr", {.common = kLaunch}},
        {"verbose", config::flag(&L::verbose), kOutput, kLaunch, "show all that ps and workers print"},
    };
    // clang-format on
    rows.insert(rows.end(), own.begin(), own.end());
    return rows;
  }();
  return kRows;
}

}  // namespace ps::tools
