#include "launch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <utility>

#include "embedded_digits.hpp"
#include "ps/errors.hpp"
#include "shm/job_segments.hpp"
#include "train/count_model.hpp"
#include "train/trainer.hpp"

namespace ps::tools {
namespace {

constexpr int kTickMs = 100;            // how late a signal may be seen
constexpr double kPsEndsSeconds = 3;    // a ps that ends by itself takes some milliseconds
constexpr double kCleanEndSeconds = 8;  // a ps waits up to 5 s for workers that do not answer

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

using Arguments = std::vector<std::string>;

template <class Value>
void add(Arguments& arguments, const char* name, const Value& value) {
  arguments.emplace_back(name);
  arguments.push_back(fmt::format("{}", value));
}

// Times go as plain seconds.
Arguments ps_arguments(const PsSettings& settings) {
  const JobConfig& job = settings.job;
  Arguments all;
  add(all, "--job", job.job);
  add(all, "--workers", job.workers);
  if (job.max_workers != 0) add(all, "--max-workers", job.max_workers);
  add(all, "--mode", to_string(job.mode));
  add(all, "--layout", to_string(job.layout));
  add(all, "--adds", to_string(job.adds));
  if (job.steps != 0) add(all, "--steps", job.steps);
  add(all, "--lr", job.learning_rate);
  add(all, "--lr-schedule", job.schedule.to_string());
  add(all, "--l2", job.l2);
  add(all, "--seed", job.seed);
  add(all, "--linger", job.linger_seconds);
  add(all, "--step-timeout", job.step_timeout_seconds);
  if (settings.keep_segments) all.emplace_back("--keep-segments");
  return all;
}

Arguments worker_arguments(const LaunchSettings& settings, std::uint32_t rank) {
  const TrainingSettings& training = settings.training;
  Arguments all;
  add(all, "--job", settings.ps.job.job);
  add(all, "--rank", rank);
  add(all, "--model", training.model);
  add(all, "--wait-job", training.wait_job_seconds);
  if (training.is_count()) {
    add(all, "--steps", training.steps);
    add(all, "--size", training.size);
    add(all, "--interval", training.interval_seconds);
  } else {
    add(all, "--data", training.data);
    if (training.batch != 0) add(all, "--batch", training.batch);
  }
  const auto delay = settings.delay_seconds_of_rank.find(rank);
  add(all, "--delay", delay != settings.delay_seconds_of_rank.end() ? delay->second : settings.delay_seconds);
  all.emplace_back("--together");  // a short job would be over before the last one has started
  all.emplace_back("--json");
  if (!settings.verbose) all.emplace_back("--quiet");
  return all;
}

// Fills in what depends on the model.
LaunchSettings completed(LaunchSettings settings) {
  TrainingSettings& training = settings.training;
  if (training.is_count()) {
    if (training.steps == 0) training.steps = kDefaultCountSteps;
  } else {
    settings.ps.job.steps = training.steps != 0 ? training.steps : train::default_steps(training.data);
  }
  return settings;
}

}  // namespace

Launch::Launch(const LaunchSettings& settings) : settings_(completed(settings)) {
  const JobConfig& job = settings_.ps.job;
  const TrainingSettings& training = settings_.training;
  if (training.is_count()) {
    target_steps_ = job.mode == Mode::kSync ? training.steps : training.steps * job.workers;
  } else {
    train::DataSplit data = train::load_data(training.data, train::embedded_digits());
    model_ = train::make_model(training.model, data.train.features, data.train.classes);
    test_ = std::move(data.test);
    target_steps_ = job.steps;
  }
  progress_.emplace(stderr);
  if (!model_ && training.steps > train::kLargestExactCount / job.workers)
    progress_->print(fmt::format("launch_shm: float32 counts exactly up to {} only", train::kLargestExactCount));
}

int Launch::run() {
  if (const int code = start_ps()) return code;
  if (stop_requests() == 0) start_workers();
  while (is_any_worker_running()) {
    attend(kTickMs);
    show_progress();
  }
  progress_->clear();
  const bool is_interrupted = stop_requests() != 0;
  if (!is_interrupted) collect();
  end_ps();
  if (!settings_.ps.keep_segments && ps_->exit_code() != 0)
    shm::remove_job(settings_.ps.job.job);  // its ps was killed; a live job of that name is not touched
  if (is_interrupted) {
    progress_->print(fmt::format("launch_shm: interrupted at step {}", view_->info().global_step));
    return kInterrupted;
  }
  return has_failed_ ? kFailed : 0;
}

// Returns the exit code of a ps that could not start. Without a view before the first worker, a short job would be over
// before it was seen.
int Launch::start_ps() {
  constexpr int kLookMs = 2;
  ps_.emplace("ps", "ps_shm", ps_arguments(settings_.ps));
  while (!view_) {
    attend(kLookMs);
    if (ps_->has_ended()) {
      progress_->print(stop_requests() != 0          ? "launch_shm: interrupted"
                       : error_of_.count(&*ps_) != 0 ? error_of_[&*ps_]
                                                     : fmt::format("launch_shm: ps_shm {}", ps_->outcome()));
      return stop_requests() != 0 ? kInterrupted : std::max(ps_->exit_code(), 1);
    }
    // A dead job of that name may still lie there; the ps is about to reclaim it.
    std::optional<JobView> view = JobView::try_open(settings_.ps.job.job);
    if (view && view->info().ps_pid == static_cast<std::uint32_t>(ps_->pid())) view_.emplace(std::move(*view));
  }
  return 0;
}

void Launch::start_workers() {
  for (std::uint32_t rank = 0; rank < settings_.ps.job.workers; ++rank)
    workers_.emplace_back(fmt::format("worker {}", rank), "worker_shm", worker_arguments(settings_, rank));
}

bool Launch::is_any_worker_running() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Child& worker) { return !worker.has_ended(); });
}

void Launch::send_all(int signal) {
  for (const Child& worker : workers_) worker.send(signal);
  ps_->send(signal);
}

// Handles output, signals and ends.
void Launch::attend(int timeout_ms) {
  std::vector<Child*> all{&*ps_};
  for (Child& worker : workers_) all.push_back(&worker);
  tools::attend(all, timeout_ms, [this](const Child& child, bool is_error, const std::string& line) {
    take_line(child, is_error, line);
  });
  const int requests = stop_requests();
  if (requests > signals_sent_) {
    if (signals_sent_ == 0) give_up_at_ = now_seconds() + kCleanEndSeconds;
    signals_sent_ = requests;
    send_all(requests == 1 ? stop_signal() : SIGKILL);
  }
  if (give_up_at_ != 0.0 && now_seconds() > give_up_at_) send_all(SIGKILL);
  note_ends();
}

void Launch::take_line(const Child& child, bool is_error, const std::string& line) {
  const bool is_ps = &child == &*ps_;
  if (!is_error && !is_ps) {
    const report::Json json = report::Json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("began") && json.contains("seconds"))
      times_of_[&child] = {json["began"].get<double>(), json["seconds"].get<double>()};
  } else if (is_error && line.starts_with(is_ps ? "ps_shm: " : "worker_shm: ")) {
    error_of_[&child] = line;
  } else if (is_error || settings_.verbose) {
    progress_->print(fmt::format("[{}] {}", child.title(), line));
  }
}

void Launch::note_ends() {
  const auto note = [&](const Child& child, const char* what_now) {
    if (!child.has_ended() || !noted_.insert(&child).second || child.exit_code() == 0 || stop_requests() != 0) return;
    has_failed_ = true;
    const auto error = error_of_.find(&child);
    const std::string why = error != error_of_.end() ? error->second.substr(error->second.find(':')) : "";
    progress_->print(fmt::format("launch_shm: {} {}{}{}", child.title(), child.outcome(), why, what_now));
  };
  for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
    const bool was_noted = noted_.count(&workers_[rank]) != 0;
    const std::vector<WorkerInfo> joined = view_->workers();
    const bool has_joined =
        std::any_of(joined.begin(), joined.end(), [&](const WorkerInfo& worker) { return worker.rank == rank; });
    note(workers_[rank], !is_any_worker_running() ? ""
                         : has_joined             ? "; the others go on"
                                                  : "; the job can't start without it");
    if (!was_noted && noted_.count(&workers_[rank]) != 0 && !has_joined && has_failed_) send_all(SIGTERM);
  }
  if (view_) note(*ps_, is_any_worker_running() ? "; the workers go on" : "");
}

void Launch::show_progress() {
  if (!progress_->is_due() || stop_requests() != 0) return;
  report::JobProgress now;
  now.steps = view_->info().global_step;
  now.target_steps = target_steps_;
  now.mean_staleness = view_->staleness().mean;
  now.workers = settings_.ps.job.workers;
  double loss = 0.0;
  std::uint32_t with_loss = 0;
  for (const WorkerInfo& worker : view_->workers()) {
    now.live_workers += worker.state == WorkerState::kAlive;
    if (worker.examples == 0) continue;
    loss += worker.loss;
    ++with_loss;
  }
  if (with_loss != 0) now.loss = loss / with_loss;
  progress_->show(now);
}

void Launch::collect() {
  const std::vector<VariableInfo> variables = view_->variables();
  if (variables.empty() || view_->info().global_step == 0 ||
      !std::all_of(variables.begin(), variables.end(), [](const VariableInfo& v) { return v.initialised; }))
    return;
  report::RunReport run = report::RunReport::of_job(*view_);
  run.model = settings_.training.model;
  for (report::WorkerReport& worker : run.per_worker) {
    run.seconds = std::max(run.seconds, worker.seconds);  // unless all say when they began
    if (worker.rank >= workers_.size()) continue;
    const auto times = times_of_.find(&workers_[worker.rank]);
    if (times == times_of_.end()) continue;
    worker.began_unix = times->second.began_unix;
    worker.seconds = times->second.seconds;
  }
  run.sum_up();
  if (model_) {
    run.data = settings_.training.data;
    train::ParameterArrays parameters(model_->parameters());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::vector<float> values = view_->values(model_->parameters()[i].name);
      std::copy(values.begin(), values.end(), parameters[i].begin());
    }
    run.test = model_->evaluate(parameters.values(), test_);
  } else {
    run.count = report::CountedValues(view_->values(train::kCountVariable));
  }
  report_ = std::move(run);
}

// It ends by itself once all its workers have joined and left, but would linger where one has died or come too late.
void Launch::end_ps() {
  const bool ends_by_itself = !has_failed_ && view_->workers().size() >= settings_.ps.job.workers;
  const double ask_at = now_seconds() + (ends_by_itself ? kPsEndsSeconds : 0.0);
  bool was_asked = stop_requests() != 0;
  while (!ps_->has_ended()) {
    attend(kTickMs);
    if (was_asked || now_seconds() < ask_at) continue;
    was_asked = true;
    noted_.insert(&*ps_);  // its exit code will say that it was interrupted
    ps_->send(SIGTERM);
    give_up_at_ = now_seconds() + kCleanEndSeconds;
  }
}

}  // namespace ps::tools
