#include "launch_shm/launch.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <utility>

#include "cli/output.hpp"
#include "common/checkpoint_dir.hpp"
#include "common/warm_start.hpp"
#include "config/modes.hpp"
#include "launch_shm/child_arguments.hpp"
#include "launch_shm/html_report.hpp"
#include "launch_shm/launch_result.hpp"
#include "launch_shm/prepared_settings.hpp"
#include "persistence/tensor_files.hpp"
#include "ps_shm/errors.hpp"
#include "shm/segment/job_segments.hpp"
#include "train/log/span_log.hpp"
#include "train/loop/count_model.hpp"
#include "update/traits.hpp"

namespace ps_shm::tools {
namespace {

constexpr int kMaxEarlyFailures = 5;  // children that ended by themselves before they began to work
constexpr int kMaxEarlyKills = 20;    // including pauses: half a minute, in which the cause may disappear
constexpr double kFirstPauseSeconds = 0.1, kLongestPauseSeconds = 2;  // before a replacement; doubled each time
constexpr double kPsEndsSeconds = 3;           // a ps that ends by itself takes some milliseconds
constexpr double kEvaluatorSpeaksSeconds = 1;  // it reports immediately what it has found
constexpr double kCleanEndSeconds = 8;         // a ps waits up to 5 s for workers that do not respond
constexpr double kLocksEndSeconds = 2;         // see remove_leftovers()
constexpr double kTogetherSeconds = 0.3;       // within which workers that fail for one reason are told of together
constexpr double kSavingSeconds = 600;         // and may have to write a checkpoint; a second signal ends it at once

// A message of a child without the child's name, with which it may begin.
std::string without_title(const Child& child, const std::string& message) {
  const std::string title = child.title() + ": ";
  return message.starts_with(title) ? message.substr(title.size()) : message;
}

std::string titled(const Child& child, const std::string& line) {
  return fmt::format("[{}] {}", child.title(), without_title(child, line));
}

// For a ps that succeeds a dead one.
PsSettings adopting(PsSettings settings) {
  settings.adopt = true;
  return settings;
}

}  // namespace

Launch::Launch(const LaunchSettings& settings)
    : workload_(settings.program.empty() && settings.training.learns() ? load_workload(settings.training) : nullptr),
      settings_(completed(settings, workload_.get())) {
  const JobConfig& job = settings_.ps.job;
  const TrainingSettings& training = settings_.training;
  if (!settings_.bridge.empty()) static_cast<void>(bridge_arguments(settings_));  // checks it
  if (has_program()) {
    target_steps_ = job.steps;
  } else if (!workload_) {
    target_steps_ = traits_of(job.mode).steps_together() ? training.steps : training.steps * job.workers;
  } else {
    target_steps_ = job.steps;
    if (settings_.curve_points != 0) curve_.emplace(settings_.curve_points, job.steps, *workload_);
  }
  if (!has_program()) check_places(job, workload_.get());
  if (const std::optional<Checkpoint> beginning = checked_beginning(settings_, workload_.get())) {
    why_done_ = why_done(*beginning, job);
    if (why_done_ && settings_.json) report_ = report_of(*beginning);
    if (why_done_) return;
  }
  check_room(settings_, workload_.get());
  if (workload_ && !training.init_from.empty()) static_cast<void>(WarmStart(training, workload_->variables()));
  if (!settings_.record.empty()) recorded_.emplace(settings_.record, settings_.job_arguments);
  if (!settings_.replay.empty()) replayed_.emplace(settings_.replay, job.workers);
  if (!settings_.trace.empty()) traces_.emplace(settings_.trace);
  progress_.emplace(stderr);
  if (curve_ && curve_->was_thinned())
    progress_->print(fmt::format("launch_shm: the copies for --curve {} would exceed 256 MiB: reduced to {}",
                                 settings_.curve_points, curve_->points()));
  if (!workload_ && !has_program() && training.steps > train::kMaxExactCount / job.workers)
    progress_->print(fmt::format("launch_shm: float32 counts exactly only up to {}", train::kMaxExactCount));
}

int Launch::run() {
  if (why_done_) {
    tell(*why_done_);
    return 0;
  }
  check_place_of_result(settings_);
  try {
    const std::string control = shm::control_name(settings_.ps.job.job);
    const std::vector<std::string> there = shm::list_segments(control);
    if (has_program()) guard_.emplace();
    was_free_ = !std::binary_search(there.begin(), there.end(), control);
    const int code = run_job();
    remove_leftovers();
    return code;
  } catch (...) {
    end_all();
    throw;
  }
}

int Launch::run_job() {
  if (const int code = start_ps()) return code;
  if (stop_requests() == 0 && settings_.evaluate_every.is_given())
    evaluator_.emplace("evaluator", "worker_shm", worker_arguments(evaluator_settings(settings_)));
  if (stop_requests() == 0) start_workers();
  if (stop_requests() == 0) start_bridge();
  while (is_any_worker_running() || is_pausing_) {
    attend(curve_ ? curve_->wait_ms(kTickMs) : kTickMs);
    if (curve_) curve_->look(*view_);
    note_beginnings();
    look_elsewhere();
    keep_ps();
    keep_number();
    keep_bridge();
    call_off();
    begin_next_lives();
    show_progress();
  }
  progress_->clear();
  const bool is_interrupted = stop_requests() != 0;
  if (is_interrupted) has_failed_ = false;  // from here on: what was trained could not be kept
  if (!is_interrupted) check_joined();
  if (!is_interrupted) collect();
  has_recording_ = !is_interrupted && attempt([this] { finish_record(); }) && recorded_ && report_;
  has_trace_ = traces_ && attempt([this] { traces_->merge(); });
  if (!settings_.save.empty()) attempt([this] { progress_->print("launch_shm: " + save_result(*view_, settings_)); });
  end_ps();
  end_bridge();
  end_evaluator();
  report_evaluations();
  if (ps().exit_code() == kFailed) has_failed_ = true;  // also if it was asked to end: its last checkpoint is lost
  has_report_file_ = report_ && !settings_.report.empty() &&
                     attempt([this] { persistence::write_text(settings_.report, to_html(*report_, settings_)); });
  attempt([this] { report_places(); });
  if (is_interrupted) {
    progress_->print(fmt::format("launch_shm: interrupted at step {}", view_->info().global_step));
    return has_failed_ ? kFailed : kInterrupted;
  }
  return has_failed_ || evaluator_failed_ ? kFailed : 0;
}

// Returns the exit code of a ps that failed to start. Without a view before the first worker, a short job might end
// before it is seen.
int Launch::start_ps() {
  constexpr int kLookMs = 2;
  servers_.emplace_back("ps", "ps_shm", ps_arguments(settings_.ps));
  while (!view_) {
    attend(kLookMs);
    if (ps().has_ended()) {
      if (stop_requests() != 0)
        progress_->print("launch_shm: interrupted");
      else
        progress_->print_error(error_of_.count(&ps()) != 0 ? error_of_[&ps()]
                                                           : fmt::format("launch_shm: ps_shm {}", ps().outcome()));
      return stop_requests() != 0 ? kInterrupted : std::max(ps().exit_code(), 1);
    }
    // A dead job of that name may still exist; the ps is about to reclaim it.
    std::optional<JobView> view = JobView::try_open(settings_.ps.job.job);
    if (view && view->info().ps_pid == static_cast<std::uint32_t>(ps().pid())) view_.emplace(std::move(*view));
  }
  return 0;
}

bool Launch::is_ps(const Child& child) const {
  return std::any_of(servers_.begin(), servers_.end(), [&](const Child& one) { return &one == &child; });
}

// Starts a replacement for a dead ps, also if a worker has failed: the others still need checkpoints and publications.
void Launch::keep_ps() {
  if (!wants_ps_ || is_ending() || now_seconds() < restart_at_) return;
  wants_ps_ = false;
  servers_.emplace_back("ps", "ps_shm", ps_arguments(adopting(settings_.ps)));
}

bool Launch::serves(const Child& ps) const { return view_->info().ps_pid == static_cast<std::uint32_t>(ps.pid()); }

bool Launch::is_ending() const { return give_up_at_ != 0.0 || stop_requests() != 0; }

bool Launch::is_any_worker_running() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Member& m) { return !m.child.has_ended(); });
}

std::vector<Child*> Launch::children() {
  std::vector<Child*> all;
  for (Child& server : servers_) all.push_back(&server);
  for (Member& member : workers_) all.push_back(&member.child);
  if (evaluator_) all.push_back(&*evaluator_);
  for (Child& bridge : bridges_) all.push_back(&bridge);
  return all;
}

void Launch::send_all(int signal) {
  for (Member& member : workers_) member.child.send(signal);
  if (evaluator_) evaluator_->send(signal);
  for (Child& bridge : bridges_) bridge.send(signal);
  for (Child& server : servers_) server.send(signal);
}

// Kills those that have not ended in time.
void Launch::give_up() {
  for (Member& member : workers_) member.child.send(SIGKILL);
  if (stop_requests() != 0 || has_failed_)  // else it exchanges the last steps
    for (Child& bridge : bridges_) bridge.send(SIGKILL);
  const bool may_save = !settings_.ps.checkpoint.dir.empty() && now_seconds() < give_up_at_ + kSavingSeconds;
  for (Child& server : servers_)
    if (!may_save) server.send(SIGKILL);
}

void Launch::ask_all_to_end() {
  send_all(SIGTERM);
  give_up_at_ = now_seconds() + kCleanEndSeconds;
}

// Handles output, signals and ends.
void Launch::attend(int timeout_ms) {
  tools::attend(children(), timeout_ms, [this](const Child& child, bool is_error, const std::string& line) {
    take_line(child, is_error, line);
  });
  const int requests = stop_requests();
  if (requests > signals_sent_) {
    if (signals_sent_ == 0) give_up_at_ = now_seconds() + kCleanEndSeconds;
    signals_sent_ = requests;
    send_all(requests == 1 ? stop_signal() : SIGKILL);
  }
  if (give_up_at_ != 0.0 && now_seconds() > give_up_at_) give_up();
  note_ends();
}

void Launch::take_line(const Child& child, bool is_error, const std::string& line) {
  const bool of_ps = is_ps(child);
  if (traces_ && is_error && line.find(train::kTraceIsLost) != line.npos) traces_->lose();
  if (!bridges_.empty() && &child == &bridges_.back()) {
    if (line.find(": joined job ") != std::string::npos) bridge_has_joined_ = true;
    if (line.find(": group of ") != std::string::npos) bridge_failures_ = 0;
    return progress_->print(line);
  }
  if (has_program() && !of_ps && !is_error && !settings_.json) {
    progress_->clear();
    write_out(line + "\n");
  } else if (has_program() && !of_ps) {
    progress_->print(titled(child, line));
  } else if (!is_error && !of_ps) {
    report::Json json = report::Json::parse(line, nullptr, false);
    if (evaluator_ && &child == &*evaluator_) return take_evaluation(json);
    if (!json.is_object()) return;
    if (const auto rank = json.find("rank"); rank != json.end() && rank->is_number_unsigned())
      last_objects_of_[&child][rank->get<std::uint32_t>()] = json;
  } else if (is_error && line.starts_with(of_ps ? "ps_shm: " : "worker_shm: ")) {
    error_of_[&child] = line;
  } else if (is_error || settings_.verbose) {
    progress_->print(titled(child, line));
  }
}

// Its outcome and the reason.
std::string Launch::how_it_ended(const Child& child) {
  const auto error = error_of_.find(&child);
  const std::string why =
      error != error_of_.end() ? ": " + without_title(child, error->second.substr(error->second.find(':') + 2)) : "";
  return child.outcome() + why;
}

// Describes a child that has failed, the reason, and the consequence for the job.
std::string Launch::describe_end(const Child& child, const char* what_now) {
  const char* const whose = child.title().starts_with("workers ") ? "the process of " : "";
  return fmt::format("launch_shm: {}{} {}{}", whose, child.title(), how_it_ended(child), what_now);
}

// While all are ending, those that still run may be about to fail for the same reason.
void Launch::tell_failures() {
  if (failures_.empty() || (is_any_worker_running() && (is_ending() || now_seconds() < tell_failures_at_))) return;
  std::stable_sort(failures_.begin(), failures_.end(),
                   [](const Failure& a, const Failure& b) { return a.ranks.first < b.ranks.first; });
  while (!failures_.empty()) {
    const std::string how = failures_.front().how;
    const auto others = std::stable_partition(failures_.begin(), failures_.end(),
                                              [&](const Failure& failure) { return failure.how == how; });
    std::vector<std::string> names;
    bool are_processes = false;
    const Failure* last = &failures_.front();
    for (auto failure = failures_.begin(); failure != others; ++failure) {
      names.push_back(failure->ranks.name());
      are_processes |= failure->ranks.count != 1;
      if (failure->number > last->number) last = &*failure;
    }
    progress_->print_error(fmt::format("launch_shm: {}{} {} {}{}", are_processes ? "the process of " : "",
                                       names.size() == 1 && !are_processes ? "worker" : "workers",
                                       fmt::join(names, ", "), how, last->what_now));
    failures_.erase(failures_.begin(), others);
  }
}

// Whether to replace the child: immediately if it was killed during its work, otherwise after a pause. A child that
// ends by itself before its work would fail again; the cause of kills may disappear.
bool Launch::may_follow(const Child& child, bool has_worked) {
  const bool was_killed = child.was_killed() || child.exit_code() == kInterrupted;
  if (has_worked) {
    early_ends_ = {};
    restart_at_ = was_killed ? 0.0 : now_seconds() + kFirstPauseSeconds;
    return true;
  }
  ++(was_killed ? early_ends_.killed : early_ends_.own);
  restart_at_ = now_seconds() + std::min(std::ldexp(kFirstPauseSeconds, early_ends_.all++), kLongestPauseSeconds);
  return early_ends_.own < kMaxEarlyFailures && early_ends_.killed < kMaxEarlyKills;
}

void Launch::note_worker_end(Member& member) {
  const Past past = past_of(member.ranks);
  const bool have_joined = past.held == member.ranks.count;
  if (replaces_workers()) {
    if (member.was_asked_to_leave) return;
    if (may_follow(member.child, past.steps > member.before.steps)) {
      progress_->print_error(describe_end(member.child, "; it is being replaced"));
      return;
    }
    has_failed_ = true;
    progress_->print_error(describe_end(member.child, "; so did its predecessors: the launch is aborted"));
    return ask_all_to_end();
  }
  // Once a step has been made, the others wait for none that has not joined.
  const bool others_continue = have_joined || view_->info().global_step != view_->info().config.first_step;
  has_failed_ = true;
  if (failures_.empty()) tell_failures_at_ = now_seconds() + kTogetherSeconds;
  failures_.push_back({.ranks = member.ranks,
                       .how = how_it_ended(member.child),
                       .what_now = !is_any_worker_running() ? ""
                                   : replayed_              ? "; the replay ends"
                                   : others_continue        ? "; the others continue"
                                                            : "; the job can't start without it",
                       .number = noted_.size()});
  if (!others_continue || replayed_) ask_all_to_end();
}

void Launch::note_ends() {
  // Once a child has failed, those that the launcher asks to end because of it are not failures of their own.
  const auto is_news = [&](const Child& child) {
    return child.has_ended() && noted_.insert(&child).second && child.exit_code() != 0 && stop_requests() == 0 &&
           !(has_failed_ && child.ended_as_asked());
  };
  for (Member& member : workers_)
    if (is_news(member.child)) note_worker_end(member);
  tell_failures();
  if (evaluator_ && is_news(*evaluator_)) {
    evaluator_failed_ = true;
    progress_->print_error(describe_end(*evaluator_, is_any_worker_running() ? "; the workers continue" : ""));
  }
  for (const Child& bridge : bridges_)
    if (is_news(bridge)) note_bridge_end(bridge);
  if (!view_ || !is_news(ps())) return;
  const bool is_to_be_replaced = replaces_workers() && !view_->info().finished;
  const bool has_work = (is_any_worker_running() || is_to_be_replaced) && !is_ending();
  wants_ps_ = has_work && may_follow(ps(), serves(ps()));
  progress_->print_error(describe_end(ps(), wants_ps_ ? "; the workers continue, and another ps takes the job over"
                                            : is_any_worker_running() ? "; the workers continue"
                                                                      : ""));
  if (!wants_ps_) has_failed_ = true;
}

bool Launch::attempt(const std::function<void()>& act) {
  try {
    act();
    return true;
  } catch (const Error& error) {
    has_failed_ = true;
    progress_->print_error(fmt::format("launch_shm: {}", error.what()));
    return false;
  }
}

void Launch::finish_record() {
  if (recorded_ && report_) recorded_->finish(report_->digest);
  if (replayed_ && report_ && !has_failed_) progress_->print("launch_shm: " + replayed_->check_digest(report_->digest));
}

// It ends by itself once all workers have joined and left, but would linger if one died or came too late. One that has
// just been started has to take the job over first, or the last checkpoint would be lost.
void Launch::end_ps() {
  const bool ends_by_itself = !has_failed_ && view_->workers().size() >= settings_.ps.job.workers;
  const double ask_at = now_seconds() + kPsEndsSeconds;
  bool was_asked = stop_requests() != 0;
  while (!ps().has_ended()) {
    attend(kTickMs);
    if (was_asked || (now_seconds() < ask_at && (ends_by_itself || !serves(ps())))) continue;
    was_asked = true;
    noted_.insert(&ps());  // its exit code will report an interruption
    ps().send(SIGTERM);
    give_up_at_ = now_seconds() + kCleanEndSeconds;
  }
}

// It ends by itself after the last generation, unless the job ended before it found its publication.
void Launch::end_evaluator() {
  const double ask_at = now_seconds() + kEvaluatorSpeaksSeconds;
  if (stop_requests() == 0) give_up_at_ = 0.0;  // an evaluation may take long
  while (evaluator_ && !evaluator_->has_ended()) {
    attend(kTickMs);
    if (evaluates_ || now_seconds() < ask_at || !noted_.insert(&*evaluator_).second) continue;
    progress_->print("launch_shm: the job ended before the evaluator found its publication");
    evaluator_->send(SIGTERM);
  }
}

// After an error in the launcher itself, with the children in an unknown state.
void Launch::end_all() noexcept try {
  const std::vector<Child*> all = children();
  const auto is_any_running = [&] {
    return std::any_of(all.begin(), all.end(), [](const Child* child) { return !child->has_ended(); });
  };
  ask_all_to_end();
  while (is_any_running()) {
    tools::attend(all, kTickMs, [](const Child&, bool, const std::string&) {});
    if (stop_requests() > signals_sent_ || now_seconds() > give_up_at_) send_all(SIGKILL);
  }
  remove_leftovers();
} catch (const std::exception&) {
  // The original error is reported. Children that still run are killed by their destructors.
}

// A ps removes its job at its end, unless it was killed or another process had a lock. The kernel keeps the locks of a
// process that has ended while another one still reads its memory, as `pgrep -f` does, so this tries for a while. Another
// job of that name is not touched: a live one has locks, and a dead one existed before.
void Launch::remove_leftovers() {
  if (servers_.empty() || settings_.ps.keep_segments || (!view_ && !was_free_)) return;
  const std::string& job = settings_.ps.job.job;
  const double until = now_seconds() + kLocksEndSeconds;
  for (bool is_last = false; shm::remove_job(job) == shm::RemoveOutcome::kAlive; is_last = now_seconds() > until) {
    poll(nullptr, 0, kTickMs);
    if (!is_last) continue;
    const std::string keeps = shm::who_keeps(job, {});
    if (!keeps.empty()) progress_->print(fmt::format("launch_shm: job {} stays in /dev/shm: {}", job, keeps));
    return;
  }
}

}  // namespace ps_shm::tools
