#include "launch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <utility>

#include "child_arguments.hpp"
#include "ps/errors.hpp"
#include "shm/job_segments.hpp"
#include "train/count_model.hpp"

namespace ps::tools {
namespace {

constexpr int kTickMs = 100;           // how late a signal may be seen
constexpr double kQuickSeconds = 1.0;  // who ends sooner has not begun to work
constexpr int kMostQuickFailures = 5;
constexpr double kPsEndsSeconds = 3;    // a ps that ends by itself takes some milliseconds
constexpr double kCleanEndSeconds = 8;  // a ps waits up to 5 s for workers that do not answer

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Fills in what depends on the model and its data.
LaunchSettings completed(LaunchSettings settings, const Subject* subject) {
  TrainingSettings& training = settings.training;
  if (subject != nullptr)
    complete_job(subject->examples(), subject->batch(), training, settings.ps.job);
  else if (training.steps == 0)
    training.steps = kDefaultCountSteps;
  return settings;
}

// Of a ps that follows a dead one.
PsSettings adopting(PsSettings settings) {
  settings.adopt = true;
  return settings;
}

}  // namespace

Launch::Launch(const LaunchSettings& settings)
    : subject_(settings.training.is_count() ? nullptr : load_subject(settings.training)),
      settings_(completed(settings, subject_.get())) {
  const JobConfig& job = settings_.ps.job;
  const TrainingSettings& training = settings_.training;
  if (!subject_) {
    target_steps_ = job.mode == Mode::kSync ? training.steps : training.steps * job.workers;
  } else {
    target_steps_ = job.steps;
    if (settings_.curve_points != 0) curve_.emplace(settings_.curve_points, job.steps, *subject_);
  }
  progress_.emplace(stderr);
  if (curve_ && curve_->was_thinned())
    progress_->print(fmt::format("launch_shm: the copies for --curve {} would take more than 256 MiB: there will be {}",
                                 settings_.curve_points, curve_->points()));
  if (!subject_ && training.steps > train::kLargestExactCount / job.workers)
    progress_->print(fmt::format("launch_shm: float32 counts exactly up to {} only", train::kLargestExactCount));
}

int Launch::run() {
  if (const int code = start_ps()) return code;
  if (stop_requests() == 0) start_workers();
  while (is_any_worker_running()) {
    attend(curve_ ? curve_->wait_ms(kTickMs) : kTickMs);
    if (curve_) curve_->look(*view_);
    keep_number();
    show_progress();
  }
  progress_->clear();
  const bool is_interrupted = stop_requests() != 0;
  if (!is_interrupted) collect();
  end_ps();
  if (!settings_.ps.keep_segments && ps().exit_code() != 0)
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
  servers_.emplace_back("ps", "ps_shm", ps_arguments(settings_.ps));
  while (!view_) {
    attend(kLookMs);
    if (ps().has_ended()) {
      progress_->print(stop_requests() != 0          ? "launch_shm: interrupted"
                       : error_of_.count(&ps()) != 0 ? error_of_[&ps()]
                                                     : fmt::format("launch_shm: ps_shm {}", ps().outcome()));
      return stop_requests() != 0 ? kInterrupted : std::max(ps().exit_code(), 1);
    }
    // A dead job of that name may still lie there; the ps is about to reclaim it.
    std::optional<JobView> view = JobView::try_open(settings_.ps.job.job);
    if (view && view->info().ps_pid == static_cast<std::uint32_t>(ps().pid())) view_.emplace(std::move(*view));
  }
  return 0;
}

bool Launch::is_ps(const Child& child) const {
  return std::any_of(servers_.begin(), servers_.end(), [&](const Child& one) { return &one == &child; });
}

void Launch::start_workers() {
  for (std::uint32_t rank = 0; rank < settings_.ps.job.workers; ++rank) start_worker(rank, true);
}

void Launch::start_worker(std::uint32_t rank, bool together) { workers_.emplace_back(settings_, rank, together); }

Launch::Member::Member(const LaunchSettings& settings, std::uint32_t its_rank, bool together)
    : rank(its_rank),
      started(now_seconds()),
      child(fmt::format("worker {}", rank), "worker_shm", worker_arguments(settings, rank, together)) {}

const Launch::Member* Launch::last_of(std::uint32_t rank) const {
  const auto found = std::find_if(workers_.rbegin(), workers_.rend(), [&](const Member& m) { return m.rank == rank; });
  return found == workers_.rend() ? nullptr : &*found;
}

// Starts workers in the place of dead ones; in elastic jobs up to the number that is set, and asks the youngest to leave
// where there are more.
void Launch::keep_number() {
  if (!replaces_workers() || has_failed_ || stop_requests() != 0 || view_->info().finished) return;
  std::uint32_t running = 0;
  for (const Member& member : workers_) {
    if (member.child.has_ended() && member.child.exit_code() == 0 && !member.was_asked_to_leave)
      return;  // it has seen the end of the job
    running += !member.child.has_ended() && !member.was_asked_to_leave;
  }
  const std::uint32_t wanted = is_elastic() ? view_->info().live.workers : settings_.ps.job.workers;
  const std::uint32_t ranks = is_elastic() ? settings_.ps.job.elastic_max : settings_.ps.job.workers;
  for (std::uint32_t rank = 0; running < wanted && rank < ranks; ++rank) {
    const Member* last = last_of(rank);
    if (last != nullptr && !last->child.has_ended()) continue;
    start_worker(rank, false);
    progress_->print(fmt::format("launch_shm: worker {} is started", rank));
    ++running;
  }
  for (auto member = workers_.rbegin(); running > wanted && member != workers_.rend(); ++member) {
    if (member->child.has_ended() || member->was_asked_to_leave) continue;
    member->was_asked_to_leave = true;
    member->child.send(SIGTERM);
    progress_->print(fmt::format("launch_shm: worker {} is asked to leave", member->rank));
    --running;
  }
}

bool Launch::is_any_worker_running() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Member& m) { return !m.child.has_ended(); });
}

void Launch::send_all(int signal) {
  for (const Member& member : workers_) member.child.send(signal);
  ps().send(signal);
}

// Handles output, signals and ends.
void Launch::attend(int timeout_ms) {
  std::vector<Child*> all;
  for (Child& server : servers_) all.push_back(&server);
  for (Member& member : workers_) all.push_back(&member.child);
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
  const bool of_ps = is_ps(child);
  if (!is_error && !of_ps) {
    report::Json json = report::Json::parse(line, nullptr, false);
    if (json.is_object()) last_object_of_[&child] = std::move(json);
  } else if (is_error && line.starts_with(of_ps ? "ps_shm: " : "worker_shm: ")) {
    error_of_[&child] = line;
  } else if (is_error || settings_.verbose) {
    progress_->print(fmt::format("[{}] {}", child.title(), line));
  }
}

bool Launch::has_joined(std::uint32_t rank) const {
  const std::vector<WorkerInfo> joined = view_->workers();
  return std::any_of(joined.begin(), joined.end(), [&](const WorkerInfo& worker) { return worker.rank == rank; });
}

// A child that has ended badly, and why, with what that means for the job.
std::string Launch::describe_end(const Child& child, const char* what_now) {
  const auto error = error_of_.find(&child);
  const std::string why = error != error_of_.end() ? error->second.substr(error->second.find(':')) : "";
  return fmt::format("launch_shm: {} {}{}{}", child.title(), child.outcome(), why, what_now);
}

void Launch::note_worker_end(Member& member) {
  if (replaces_workers()) {
    if (member.was_asked_to_leave) return;
    quick_failures_ = now_seconds() - member.started < kQuickSeconds ? quick_failures_ + 1 : 0;
    if (quick_failures_ < kMostQuickFailures) {
      progress_->print(describe_end(member.child, "; another one takes its place"));
      return;
    }
    has_failed_ = true;
    progress_->print(describe_end(member.child, "; so did those before it: the launch is ended"));
    return send_all(SIGTERM);
  }
  has_failed_ = true;
  const bool joined = has_joined(member.rank);
  progress_->print(describe_end(member.child, !is_any_worker_running() ? ""
                                              : joined                 ? "; the others go on"
                                                                       : "; the job can't start without it"));
  if (!joined) send_all(SIGTERM);
}

void Launch::note_ends() {
  const auto is_news = [&](const Child& child) {
    return child.has_ended() && noted_.insert(&child).second && child.exit_code() != 0 && stop_requests() == 0;
  };
  for (Member& member : workers_)
    if (is_news(member.child)) note_worker_end(member);
  if (!view_ || !is_news(ps())) return;
  const bool has_work = is_any_worker_running() && !has_failed_;
  const bool will_restart = has_work && quick_failures_ < kMostQuickFailures;
  progress_->print(describe_end(ps(), will_restart              ? "; the workers go on, another ps takes the job over"
                                      : is_any_worker_running() ? "; the workers go on"
                                                                : ""));
  if (will_restart) {
    quick_failures_ = now_seconds() - server_started_ < kQuickSeconds ? quick_failures_ + 1 : 0;
    server_started_ = now_seconds();
    servers_.emplace_back("ps", "ps_shm", ps_arguments(adopting(settings_.ps)));
  } else {
    has_failed_ = true;
  }
}

void Launch::show_progress() {
  if (!progress_->is_due() || stop_requests() != 0) return;
  report::JobProgress now;
  now.steps = view_->info().global_step;
  now.target_steps = target_steps_;
  now.mean_staleness = view_->staleness().mean;
  now.workers = view_->info().live.workers;
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
    const Member* member = last_of(worker.rank);
    const auto said = member != nullptr ? last_object_of_.find(&member->child) : last_object_of_.end();
    if (said != last_object_of_.end()) report::read_times(said->second, worker);
  }
  run.sum_up();
  if (subject_) {
    const auto values_of = [&](std::vector<float> (JobView::*read)(const std::string&) const) {
      std::vector<std::vector<float>> values;
      for (const train::ParameterSpec& variable : subject_->variables())
        values.push_back(((*view_).*read)(variable.name));
      return values;
    };
    run.data = settings_.training.data;
    run.epochs = subject_->epochs(run.steps);
    run.test = subject_->evaluate(values_of(&JobView::values));
    run.is_test_of_training = subject_->is_judged_by_training_data();
    if (curve_) {
      run.curve = curve_->evaluate(*subject_, run.began_unix);
      run.curve.push_back({run.seconds, run.steps, run.epochs, *run.test});
    }
    const Optimizer& optimizer = settings_.ps.job.optimizer;
    if (optimizer.ema > 0 && optimizer.rule != UpdateRule::kAdd)
      run.average_test = subject_->evaluate(values_of(&JobView::averages));
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
  while (!ps().has_ended()) {
    attend(kTickMs);
    if (was_asked || now_seconds() < ask_at) continue;
    was_asked = true;
    noted_.insert(&ps());  // its exit code will say that it was interrupted
    ps().send(SIGTERM);
    give_up_at_ = now_seconds() + kCleanEndSeconds;
  }
}

}  // namespace ps::tools
