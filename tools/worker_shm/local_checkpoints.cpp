#include "worker_shm/local_checkpoints.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "cli/output.hpp"
#include "common/repeating.hpp"
#include "config/job_settings.hpp"
#include "ps_shm/errors.hpp"
#include "worker_shm/worker_run.hpp"

namespace ps_shm::tools {
LocalCheckpoints::LocalCheckpoints(const WorkerSettings& settings, std::span<const train::ParameterSpec> variables,
                                   JobConfig& config, train::TrainHooks& hooks)
    : settings_(settings), config_(config) {
  if (settings.checkpoint.dir.empty()) return;
  dir_.emplace(settings.checkpoint.dir);
  begun_with_ = find_beginning(settings.checkpoint, tell);
  if (begun_with_) {
    begun_with_->require(train::variables_of(variables));
    const std::optional<std::string> done = why_done(*begun_with_, config);
    if (done) tell(*done);  // the run makes no step, and reports what the checkpoint has
    config.restore = begun_with_->folder();
    config.first_step = saved_ = begun_with_->global_step();
    hooks.checkpoint = &*begun_with_;
    if (!done)
      say(settings,
          fmt::format("standalone: resumes from checkpoint {} at step {}", config.restore, config.first_step));
  }
  due_.emplace(settings.checkpoint.every, steady_seconds(), config.first_step);
  hooks.keep = [this](std::uint64_t step, double loss, bool is_last, const auto& copy) {
    look(step, loss, is_last, copy);
  };
}

LocalCheckpoints::~LocalCheckpoints() {
  if (writing_.valid()) writing_.wait();
}

void LocalCheckpoints::look(std::uint64_t step, double loss, bool is_last,
                            const std::function<train::LocalState()>& copy) {
  if (!is_last) loss_.add(loss);
  const double now = steady_seconds();
  if (!(is_last || due_->is_now(now, step))) return;
  const bool is_writing = writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  const std::uint64_t every = settings_.checkpoint.every.steps;
  if (is_writing && !is_last) {  // the previous checkpoint takes longer than the interval
    if (every == 0) return;
    ++skipped_;
    skipped_at_ = step;
    return due_->move_past(now, step);
  }
  wait();
  if (is_last && skipped_ != 0 && skipped_at_ == step) --skipped_;
  if (is_last && skipped_ != 0) tell("standalone: " + skipped_line(skipped_, every));
  if (step == saved_) return;
  due_->move_past(now, step);
  being_saved_ = step;
  writing_ = std::async(std::launch::async, [this, is_last, state = copy(), mean = loss_.mean()]() mutable {
    return write(std::move(state), mean, is_last);
  });
  loss_.reset();
  if (!is_last) return;
  wait();
  has_lost_last_ = saved_ != step;
}

void LocalCheckpoints::wait() {
  if (writing_.valid() && writing_.get()) saved_ = being_saved_;
}

bool LocalCheckpoints::write(train::LocalState state, std::optional<double> loss, bool is_last) try {
  const double began = steady_seconds();
  const Optimizer& optimizer = config_.optimizer;
  const float rate = optimizer.lr.value_or(default_lr(optimizer.rule));
  persistence::CheckpointFacts facts{.job = config_.job.empty() ? "standalone" : config_.job,
                                     .global_step = state.step,
                                     .loss = loss,
                                     .settings = persistence::settings_as_text(config::resolved(config_)),
                                     .lr = double(optimizer.schedule.rate(rate, state.step)),
                                     .examples = {state.examples},
                                     .partial_ranks = {},
                                     .variables = {},
                                     .tables = {},
                                     .files = {}};
  persistence::CheckpointArrays arrays;
  std::stable_sort(state.arrays.begin(), state.arrays.end(),
                   [](const auto& a, const auto& b) { return a.variable < b.variable; });
  for (const train::LocalArray& array : state.arrays) {
    auto read = persistence::reader_of(std::as_bytes(std::span(array.numbers)));
    if (array.slot.empty())
      arrays.add({.name = array.variable, .shape = array.shape, .updates = state.step, .slots = {}}, std::move(read));
    else
      arrays.add_slot(array.slot, array.shape, std::move(read));
  }
  const CheckpointSettings& settings = settings_.checkpoint;
  const std::string folder =
      persistence::write_checkpoint(settings.dir, std::move(facts), arrays, settings.max_file_bytes);
  say(settings_, "standalone: " + written_line(folder, steady_seconds() - began));
  persistence::remove_old_checkpoints(settings.dir, {settings.keep, settings.keep_best}, folder, config_.restore);
  return true;
} catch (const std::exception& error) {  // including out of memory
  tell("standalone: " + (is_last ? lost_line(error.what(), saved_) : unwritten_line(error.what())));
  return false;
}

}  // namespace ps_shm::tools
