#include "ps_shm/checkpointing.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>
#include <vector>

#include "common/children.hpp"
#include "config/modes.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::tools {

namespace {

constexpr double kLossSeconds = 0.01;  // between readings of the losses
constexpr double kAheadSeconds = 1;    // a checkpoint of a step is ordered about so long before it
// and anew after so long, since there can be no other snapshot meanwhile; with a pause between
constexpr double kMostHeldSeconds = 0.5, kPauseSeconds = 0.02;
// but not where the step will come before that pause is over, or somewhat later, unless the job makes no more steps
constexpr double kImminentSeconds = 0.2, kMostImminentSeconds = 2;

// Whether the next attempt may succeed: another process has a snapshot, or workers are stopped.
bool may_come_soon(const Error& error) {
  return error.code() == ErrorCode::kTimedOut || error.code() == ErrorCode::kUnavailable;
}

}  // namespace

Checkpointing::Checkpointing(std::string job, std::string group, CheckpointSettings settings, LogCallback say,
                             LogCallback warn)
    : job_(std::move(job)),
      group_(std::move(group)),
      settings_(std::move(settings)),
      saver_({.dir = settings_.dir,
              .every = settings_.every,
              .retention = {settings_.keep, settings_.keep_best},
              .say = std::move(say),
              .warn = std::move(warn)}),
      repeating_([this](bool is_last) { return look(is_last); },
                 [this](const std::string& what, bool is_last) { saver_.failed(what, is_last); },
                 std::chrono::milliseconds(settings_.every.steps != 0 ? 1 : 10)) {}

Checkpointing::~Checkpointing() = default;

bool Checkpointing::finish() noexcept { return repeating_.finish(); }

void Checkpointing::save(WaitLimit wait, std::uint64_t at_step) {
  double began = steady_seconds();
  if (!saver_.mean_loss()) {  // two checkpoints may follow each other closely
    next_losses_ = began;
    note_losses(began, saver_.saved() + 1);  // even if no step has come since
  }
  const auto stop = [this, at_step, &began, until = began + kMostHeldSeconds] {
    const std::uint64_t step = view_->global_step();
    if (stop_requests() > 1 || (at_step != 0 && step <= at_step && repeating_.is_over())) return true;
    if (step >= at_step) return false;  // the snapshot is made
    began = steady_seconds();
    note_losses(began, step);
    const bool is_imminent = double(at_step - step) <= steps_per_second_ * kImminentSeconds;
    return began > until + (is_imminent ? kMostImminentSeconds : 0);
  };
  const std::string folder = Checkpoint::save(*view_, settings_.dir,
                                              {.max_file_bytes = settings_.max_file_bytes,
                                               .loss = saver_.mean_loss(),
                                               .group = group_,
                                               .wait = wait,
                                               .at_step = at_step,
                                               .stop_requested = stop});
  saver_.reset_losses();  // only now: an attempt that fails is made again
  saver_.written(folder, Checkpoint(folder).global_step(), steady_seconds() - began, view_->info().config.restore);
}

void Checkpointing::note_losses(double now, std::uint64_t step) {
  if (now < next_losses_ || step == saver_.saved()) return;
  next_losses_ = now + kLossSeconds;
  for (const WorkerInfo& worker : view_->workers())
    if (worker.examples != 0 && worker.state != WorkerState::kDead) saver_.add_loss(worker.loss);
}

// A program may push without ever completing a step.
bool Checkpointing::has_pushed() const {
  const std::vector<WorkerInfo> workers = view_->workers();
  return std::any_of(workers.begin(), workers.end(), [](const WorkerInfo& worker) { return worker.pushes != 0; });
}

// Mode sync: whether the job will soon come to the step of the next checkpoint, as far as is known.
bool Checkpointing::is_near(double now, std::uint64_t step) {
  constexpr double kMeasuredSeconds = 0.1;
  if (step == first_step_) return false;  // the variables are being declared
  if (measured_step_ == 0) measured_at_ = now, measured_step_ = step;
  if (step != measured_step_ && now - measured_at_ >= kMeasuredSeconds) {
    steps_per_second_ = std::max(steps_per_second_, double(step - measured_step_) / (now - measured_at_));
    measured_at_ = now, measured_step_ = step;
  }
  return steps_per_second_ == 0 || double(saver_.due().next_step() - step) <= steps_per_second_ * kAheadSeconds + 1;
}

// Mode sync, with a number of steps. A checkpoint of the last step is made at the end.
bool Checkpointing::look_ahead(double now, std::uint64_t step) {
  const std::uint64_t at_step = saver_.due().next_step();
  if ((last_step_ != 0 && at_step >= last_step_) || now < next_order_ || !is_near(now, step)) return false;
  try {
    save(longest_wait(false), at_step);
  } catch (const Interrupted&) {
    next_order_ = steady_seconds() + kPauseSeconds;
    return false;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInvalidState) return false;  // the job was past it: the next look counts it
    if (error.code() == ErrorCode::kJobFinished) {  // the last checkpoint is left
      next_order_ = std::numeric_limits<double>::infinity();
      return false;
    }
    if (!may_come_soon(error)) saver_.due().move_past(now, at_step);
    throw;
  }
  saver_.due().move_past(now, at_step);
  return true;
}

bool Checkpointing::look(bool is_last) {
  if (!view_) {
    view_.emplace(job_);
    const JobConfig& config = view_->info().config;
    first_step_ = config.first_step;
    last_step_ = config.steps;
    is_exact_ = settings_.every.steps != 0 && traits_of(config.mode).steps_together();
  }
  const std::uint64_t step = view_->global_step(), every = settings_.every.steps;
  const double now = steady_seconds();
  if (!saver_.has_begun()) saver_.begin(now, step, first_step_);
  config::Due& due = saver_.due();
  note_losses(now, step);
  if (is_exact_ && step > due.next_step()) {
    saver_.skip((step - 1 - due.next_step()) / every + 1);
    due.move_past(now, step - 1);
  }
  if (!is_last && is_exact_) return look_ahead(now, step);
  const bool is_due = due.is_now(now, step);
  if (is_last) saver_.report_skipped();
  if (step == saver_.saved() && !(is_last && step == first_step_ && has_pushed())) return false;
  if (!is_last && !is_due) return false;
  try {
    save(longest_wait(is_last), 0);
  } catch (const Error& error) {
    if (!may_come_soon(error)) due.move_past(now, step);  // else at the next call
    throw;
  }
  if (every != 0 && is_due) saver_.skip((saver_.saved() - due.next_step()) / every);
  due.move_past(now, step);
  return true;
}

}  // namespace ps_shm::tools
