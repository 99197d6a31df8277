#include "worker_shm/local_checkpoints.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "cli/output.hpp"
#include "common/checkpoint_dir.hpp"
#include "common/repeating.hpp"
#include "config/job_settings.hpp"
#include "ps_shm/errors.hpp"
#include "worker_shm/worker_run.hpp"

namespace ps_shm::tools {
LocalCheckpoints::LocalCheckpoints(const WorkerSettings& settings, std::span<const train::ParameterSpec> variables,
                                   JobConfig& config, train::TrainHooks& hooks)
    : settings_(settings),
      config_(config),
      saver_({.dir = settings.checkpoint.dir,
              .every = settings.checkpoint.every,
              .retention = {settings.checkpoint.keep, settings.checkpoint.keep_best},
              .say = [&settings](const std::string& line) { say(settings, "standalone: " + line); },
              .warn = [](const std::string& line) { tell("standalone: " + line); }}) {
  if (settings.checkpoint.dir.empty()) return;
  dir_.emplace(settings.checkpoint.dir);
  begun_with_ = find_beginning(settings.checkpoint, tell);
  if (begun_with_) {
    begun_with_->require(train::variables_of(variables));
    const std::optional<std::string> done = why_done(*begun_with_, config);
    if (done) tell(*done);  // the run makes no step, and reports what the checkpoint has
    config.restore = begun_with_->folder();
    config.first_step = begun_with_->global_step();
    hooks.checkpoint = &*begun_with_;
    if (!done)
      say(settings,
          fmt::format("standalone: resumes from checkpoint {} at step {}", config.restore, config.first_step));
  }
  saver_.begin(steady_seconds(), config.first_step, begun_with_ ? config.first_step : 0);
  hooks.keep = [this](std::uint64_t step, double loss, bool is_last, const auto& copy) {
    look(step, loss, is_last, copy);
  };
}

LocalCheckpoints::~LocalCheckpoints() {
  if (writing_.valid()) writing_.wait();
}

void LocalCheckpoints::look(std::uint64_t step, double loss, bool is_last,
                            const std::function<train::LocalState()>& copy) {
  if (!is_last) saver_.add_loss(loss);
  const double now = steady_seconds();
  if (!(is_last || saver_.due().is_now(now, step))) return;
  const bool is_writing = writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  if (is_writing && !is_last) {  // the previous checkpoint takes longer than the interval
    if (settings_.checkpoint.every.steps == 0) return;
    if (skipped_at_) saver_.skip(1);  // not the last one: it may be of the last step, which is saved
    skipped_at_ = step;
    return saver_.due().move_past(now, step);
  }
  wait();
  if (is_last && skipped_at_ && *skipped_at_ != step) saver_.skip(1);
  if (is_last) saver_.report_skipped();
  if (step == saver_.saved()) return;
  saver_.due().move_past(now, step);
  writing_ = std::async(std::launch::async, [this, is_last, state = copy(), mean = saver_.mean_loss()]() mutable {
    write(std::move(state), mean, is_last);
  });
  saver_.reset_losses();
  if (!is_last) return;
  wait();
  has_lost_last_ = saver_.saved() != step;
}

void LocalCheckpoints::wait() {
  if (writing_.valid()) writing_.get();
}

void LocalCheckpoints::write(train::LocalState state, std::optional<double> loss, bool is_last) try {
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
  saver_.written(folder, state.step, steady_seconds() - began, config_.restore);
} catch (const std::exception& error) {  // including out of memory
  saver_.failed(error.what(), is_last);
}

}  // namespace ps_shm::tools
