#include "local_checkpoints.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "config/job_settings.hpp"
#include "ps/errors.hpp"
#include "repeating.hpp"
#include "worker_run.hpp"

namespace ps::tools {
LocalCheckpoints::LocalCheckpoints(const WorkerSettings& settings, std::span<const train::ParameterSpec> variables,
                                   JobConfig& config, train::TrainHooks& hooks)
    : settings_(settings), config_(config) {
  if (settings.checkpoint.dir.empty()) return;
  dir_.emplace(settings.checkpoint.dir);
  begun_with_ = find_beginning(settings.checkpoint, tell);
  if (begun_with_) {
    begun_with_->require(variables_of(variables));
    require_steps_left(*begun_with_, config);
    config.restore = begun_with_->folder();
    config.first_step = written_ = begun_with_->global_step();
    hooks.checkpoint = &*begun_with_;
    say(settings, fmt::format("standalone: goes on from checkpoint {}, at step {}", config.restore, config.first_step));
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
  if (step == written_ || !(is_last || due_->is_now(now, step))) return;
  const bool is_writing = writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  if (is_writing && !is_last) return;  // the one before takes longer than the interval is
  if (writing_.valid()) writing_.get();
  due_->move_past(now, step);
  written_ = step;
  writing_ = std::async(std::launch::async,
                        [this, state = copy(), mean = loss_.take()]() mutable { write(std::move(state), mean); });
  if (is_last) writing_.get();
}

void LocalCheckpoints::write(train::LocalState state, std::optional<double> loss) try {
  const double began = steady_seconds();
  const Optimizer& optimizer = config_.optimizer;
  const float rate = optimizer.learning_rate.value_or(default_learning_rate(optimizer.rule));
  keep::CheckpointFacts facts{.job = config_.job.empty() ? "standalone" : config_.job,
                              .global_step = state.step,
                              .loss = loss,
                              .settings = keep::settings_as_text(config::resolved(config_)),
                              .learning_rate = double(optimizer.schedule.rate(rate, state.step)),
                              .examples = {state.examples},
                              .split = {},
                              .variables = {},
                              .files = {}};
  keep::CheckpointArrays arrays;
  std::stable_sort(state.arrays.begin(), state.arrays.end(),
                   [](const auto& a, const auto& b) { return a.variable < b.variable; });
  for (const train::LocalArray& array : state.arrays) {
    auto read = keep::reader_of(std::as_bytes(std::span(array.numbers)));
    if (array.slot.empty())
      arrays.add({.name = array.variable, .shape = array.shape, .updates = state.step, .slots = {}}, std::move(read));
    else
      arrays.add_slot(array.slot, array.shape, std::move(read));
  }
  const CheckpointSettings& settings = settings_.checkpoint;
  const std::string folder = keep::write_checkpoint(settings.dir, std::move(facts), arrays, settings.max_file_bytes);
  say(settings_, "standalone: " + written_line(folder, steady_seconds() - began));
  keep::remove_old_checkpoints(settings.dir, {settings.keep, settings.keep_best}, folder, config_.restore);
} catch (const std::exception& error) {  // of no memory, too
  tell("standalone: " + unwritten_line(error));
}

}  // namespace ps::tools
