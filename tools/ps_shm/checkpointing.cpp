#include "ps_shm/checkpointing.hpp"

#include <chrono>
#include <utility>

#include "common/children.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::tools {

Checkpointing::Checkpointing(std::string job, std::string group, CheckpointSettings settings, LogCallback say,
                             LogCallback warn)
    : job_(std::move(job)),
      group_(std::move(group)),
      settings_(std::move(settings)),
      say_(std::move(say)),
      warn_(std::move(warn)),
      repeating_([this](bool is_last) { return look(is_last); },
                 [this](const std::string& what, bool is_last) { failed(what, is_last); },
                 std::chrono::milliseconds(10)) {}

Checkpointing::~Checkpointing() = default;

bool Checkpointing::finish() noexcept { return repeating_.finish(); }

// Returns the checkpoint's step.
std::uint64_t Checkpointing::save(const JobView& view, double wait_seconds) {
  const double began = steady_seconds();
  const std::string folder = Checkpoint::save(view, settings_.dir,
                                              {.max_file_bytes = settings_.max_file_bytes,
                                               .loss = loss_.mean(),
                                               .group = group_,
                                               .wait_seconds = wait_seconds,
                                               .stop_requested = [] { return stop_requests() > 1; }});
  loss_.reset();  // only now: an attempt that fails is made again
  say_(written_line(folder, steady_seconds() - began));
  persistence::remove_old_checkpoints(settings_.dir, {settings_.keep, settings_.keep_best}, folder,
                                      view.info().config.restore);
  return Checkpoint(folder).global_step();
}

bool Checkpointing::look(bool is_last) {
  if (!view_) {
    view_.emplace(job_);
    saved_ = view_->info().config.first_step;
  }
  const std::uint64_t step = view_->global_step();
  const double now = steady_seconds();
  if (!due_) due_.emplace(settings_.every, now, step);
  // A program may push without ever completing a step.
  bool has_pushed = false;
  for (const WorkerInfo& worker : view_->workers()) {
    has_pushed = has_pushed || worker.pushes != 0;
    if (step != saved_ && worker.examples != 0 && worker.state != WorkerState::kDead) loss_.add(worker.loss);
  }
  const bool is_at_beginning = step == view_->info().config.first_step;
  if (step == saved_ && !(is_last && is_at_beginning && has_pushed)) return false;
  if (!is_last && !due_->is_now(now, step)) return false;
  try {
    saved_ = save(*view_, wait_seconds(is_last));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) due_->move_past(now, step);  // else at the next call: it may come soon
    throw;
  }
  due_->move_past(now, step);
  return true;
}

void Checkpointing::failed(const std::string& what, bool is_last) {
  warn_(is_last ? lost_line(what, saved_) : unwritten_line(what));
}

}  // namespace ps_shm::tools
