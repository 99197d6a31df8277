#include "worker_shm/worker_run.hpp"

#include <fmt/format.h>

#include <memory>
#include <mutex>

#include "cli/option_names.hpp"
#include "cli/output.hpp"
#include "common/children.hpp"
#include "common/summaries.hpp"
#include "common/warm_start.hpp"
#include "ps_shm/errors.hpp"
#include "report/gpu_summary.hpp"
#include "report/progress.hpp"
#include "train/gpu/choose_gpu.hpp"

namespace ps_shm::tools {
namespace {

// Whether a worker of this process, which may be a thread, could not write its trace, now or before.
bool has_lost_trace(bool now = false) {
  static std::mutex mutex;
  static bool has_lost = false;
  const std::lock_guard lock(mutex);
  return has_lost = has_lost || now;
}

}  // namespace

void say(const WorkerSettings& settings, const std::string& line) {
  if (settings.quiet) return;
  if (settings.json) return tell(line);
  write_out(report::fitted(line + '\n', report::columns_of(stdout)));
}

void set_hooks(const WorkerSettings& settings, const std::string& who, train::TrainHooks& hooks) {
  hooks.stop_requested = is_stop_requested;
  hooks.report = [=](const train::TrainStatus& status) { say(settings, report::worker_line(who, status)); };
  hooks.warn = [](const std::string& line) { tell(with_option_names(line)); };
  hooks.on_nan = settings.training.on_nan;
  hooks.restore_dir = settings.checkpoint.dir;
}

void print_report(const WorkerSettings& settings, const report::RunReport& run) {
  write_out(settings.json ? to_json(run).dump() + "\n" : to_text(run, report::columns_of(stdout)));
}

int interrupted(const WorkerSettings& settings, const std::string& who, const train::TrainTotals& totals) {
  say(settings, report::interruption_line(who, totals.last.steps, totals.last.global_steps));
  return kInterrupted;
}

void say_places(const WorkerSettings& settings) {
  if (settings.json) return;
  if (!settings.summary.dir.empty()) say(settings, summaries_line(settings.summary.dir));
  if (settings.trace.empty() || has_lost_trace()) return;
  const std::uint32_t workers = settings.workers_per_process;
  say(settings,
      train::trace_line(workers == 1 ? settings.trace : fmt::format("{0}.0 to {0}.{1}", settings.trace, workers - 1)));
}

std::unique_ptr<train::SpanLog> trace_of(const WorkerSettings& settings) {
  if (settings.trace.empty()) return nullptr;
  return std::make_unique<train::SpanLog>(settings.trace, [](const std::string& why) {
    has_lost_trace(true);
    tell(why);
  });
}

bool remove_lost_traces(const WorkerSettings& settings) {
  if (!has_lost_trace()) return false;
  const std::uint32_t workers = settings.workers_per_process;
  for (std::uint32_t number = 0; number < workers; ++number)
    train::remove_trace(workers == 1 ? settings.trace : fmt::format("{}.{}", settings.trace, number));
  return true;
}

namespace {

// An error about a rank names the variable from which it comes, because the user may not know of it.
Worker join_as(const WorkerOptions& options, const WorkerSettings& settings) {
  const std::string& rank_variable = settings.rank_variable;
  try {
    return Worker(options);
  } catch (const Error& error) {
    std::string what = error.what();
    const std::size_t is = what.find(" is ");
    if (rank_variable.empty() || !what.starts_with("rank ") || is == what.npos) throw;
    what.insert(is, ", which");
    if (error.code() == ErrorCode::kRankTaken)
      what = fmt::format("{}; choose another `rank`, or unset {}", what.substr(0, what.find(';')), rank_variable);
    throw Error(fmt::format("{}={} asks for {}", rank_variable, *options.rank / settings.workers_per_process, what),
                error.code());
  }
}

}  // namespace

Worker join(const WorkerSettings& settings, train::SpanLog* trace) {
  WorkerOptions options;
  options.job = settings.alone.job;
  options.group = settings.alone.group;
  options.rank = settings.rank;
  // A link to a GPU brings several times what one thread applies.
  options.threads = settings.threads.value_or(settings.device.may_be_cuda() ? 0 : 1);
  options.wait_job = settings.training.wait_job;
  options.stop_requested = is_stop_requested;
  options.record = settings.record;
  options.replay = settings.replay;
  options.replay_coordinator = settings.replay_coordinator;
  if (trace != nullptr)
    options.on_part = [trace](const char* part, std::uint64_t begin_ns, std::uint64_t end_ns) {
      trace->add(part, begin_ns, end_ns);
    };
  Worker worker = join_as(options, settings);
  if (trace != nullptr) trace->begin_worker(worker.rank());
  return worker;
}

std::optional<train::GpuPlace> choose_place(const WorkerSettings& settings, const std::string& who,
                                            std::uint32_t rank) {
  if (settings.training.dtype != DType::kFloat32) return std::nullopt;  // also with auto: a GPU has float32
  // All workers of a process use one GPU: that of the first one to come here.
  static const std::uint32_t process = rank / settings.workers_per_process;
  std::string log;
  auto place = train::choose_gpu_place(settings.device, process, log);
  if (place) {
    place->wire = settings.wire;
    place->enqueue = settings.training.enqueue;
    // What waits for the device in one thread would wait for the gate of another.
    if (place->enqueue == train::Enqueue::kAhead && settings.workers_per_process != 1)
      place->enqueue = train::Enqueue::kStep;
  }
  if (!log.empty()) tell(fmt::format("{}: {}", who, log));  // also with --quiet
  return place;
}

void say_gpu(const WorkerSettings& settings, const std::string& who, const std::optional<train::GpuReport>& gpu) {
  if (gpu) say(settings, fmt::format("{}: {}", who, report::to_text(*gpu)));
}

void begin_with_file(const WorkerSettings& settings, const std::string& who,
                     std::span<const train::ParameterSpec> variables, train::TrainHooks& hooks) {
  if (settings.training.init_from.empty()) return;
  const auto start = std::make_shared<const WarmStart>(settings.training, variables);
  hooks.first_values = [=](const std::string& name, std::span<float> values) {
    if (name == variables.front().name)
      say(settings, fmt::format("{}: {} of {} variables are initialised from {}", who, start->count(), variables.size(),
                                settings.training.init_from));
    start->fill(name, values);
  };
}

}  // namespace ps_shm::tools
