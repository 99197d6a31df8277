#include "checkpointing.hpp"

#include <chrono>
#include <utility>

#include "ps/checkpoint.hpp"
#include "ps/errors.hpp"

namespace ps::tools {
Checkpointing::Checkpointing(std::string job, std::string group, CheckpointSettings settings, Notice say, Notice warn)
    : job_(std::move(job)),
      group_(std::move(group)),
      settings_(std::move(settings)),
      say_(std::move(say)),
      warn_(std::move(warn)),
      repeating_([this](bool is_last) { look(is_last); }, std::chrono::milliseconds(10)) {}

Checkpointing::~Checkpointing() = default;

// Returns the step that it is of.
std::uint64_t Checkpointing::save(const JobView& view) {
  const double began = steady_seconds();
  const std::string folder = Checkpoint::save(
      view, settings_.dir, {.max_file_bytes = settings_.max_file_bytes, .loss = loss_.take(), .group = group_});
  say_(written_line(folder, steady_seconds() - began));
  keep::remove_old_checkpoints(settings_.dir, {settings_.keep, settings_.keep_best}, folder,
                               view.info().config.restore);
  return Checkpoint(folder).global_step();
}

void Checkpointing::look(bool is_last) try {
  if (!view_) {
    view_.emplace(job_);
    saved_ = view_->info().config.first_step;
  }
  const std::uint64_t step = view_->global_step();
  const double now = steady_seconds();
  if (!due_) due_.emplace(settings_.every, now, step);
  // A program may push without ever ending a step.
  bool has_pushed = false;
  for (const WorkerInfo& worker : view_->workers()) {
    has_pushed = has_pushed || worker.pushes != 0;
    if (step != saved_ && worker.examples != 0 && worker.state != WorkerState::kDead) loss_.add(worker.loss);
  }
  const bool is_at_beginning = step == view_->info().config.first_step;
  if (step == saved_ && !(is_last && is_at_beginning && has_pushed)) return;
  if (!is_last && !due_->is_now(now, step)) return;
  due_->move_past(now, step);
  saved_ = save(*view_);
  said_.clear();
} catch (const std::exception& error) {  // of no memory, too: this thread has nobody to tell
  if (said_ == error.what()) return;
  said_ = error.what();
  warn_(unwritten_line(error));
}

}  // namespace ps::tools
