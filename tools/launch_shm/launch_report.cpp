// Reports of a launch about its job: progress, and the result.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/metric_summaries.hpp"
#include "common/repeating.hpp"
#include "common/summaries.hpp"
#include "config/modes.hpp"
#include "launch_shm/launch.hpp"
#include "persistence/checkpoint_folder.hpp"
#include "train/log/digest.hpp"
#include "train/log/span_log.hpp"
#include "train/loop/count_model.hpp"
#include "update/bfloat16.hpp"
#include "update/bytes.hpp"
#include "update/dtypes.hpp"
#include "update/traits.hpp"

namespace ps_shm::tools {
// Workers that are killed do not report when they began. The first workers of all ranks begin together.
void Launch::note_beginnings() {
  if (!replaces_workers()) return;
  for (const WorkerInfo& worker : view_->workers()) began_of_.try_emplace(worker.rank, unix_seconds() - worker.seconds);
  if (has_begun_ || began_of_.size() < settings_.ps.job.workers) return;
  has_begun_ = true;
  double last = 0.0;
  for (const auto& [rank, began] : began_of_) last = std::max(last, began);
  for (auto& [rank, began] : began_of_) began = last;
}

void Launch::show_progress() {
  if (!progress_->is_due() || stop_requests() != 0) return;
  report::JobProgress now;
  now.first_step = view_->info().config.first_step;
  now.steps = view_->info().global_step;
  now.target_steps = target_steps_;
  if (const StalenessSummary staleness = view_->staleness();
      staleness.count != 0 && !traits_of(settings_.ps.job.mode).steps_together())
    now.mean_staleness = staleness.mean;
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
  if (!evaluations_.empty()) now.test_loss = evaluations_.back().metrics.loss;
  progress_->show(now);
}

// A line printed by the evaluator.
void Launch::take_evaluation(const report::Json& json) {
  evaluates_ = true;
  if (std::optional<report::CurvePoint> point = report::read_evaluation(json)) evaluations_.push_back(*point);
}

void Launch::report_evaluations() {
  if (!report_) return;
  report_->evaluations = std::move(evaluations_);
  for (report::CurvePoint& point : report_->evaluations) {
    point.seconds = std::max(0.0, point.seconds - report_->began_unix);
    point.epoch = workload_->epochs(point.step);
  }
}

// Of a job that has already made all its steps: what its last checkpoint has.
report::RunReport Launch::report_of(const Checkpoint& checkpoint) {
  JobConfig job = settings_.ps.job;
  job.first_step = checkpoint.global_step();
  report::RunReport run = report::RunReport::of_config(job);
  run.model = settings_.training.model;
  run.data = settings_.training.data;
  const auto read = [&](const StoredVariable& variable, const std::string& slot) {
    std::uint64_t bytes = slot.empty() ? bytes_of(variable.dtype) : sizeof(float);
    for (const std::uint64_t extent : variable.shape) bytes *= extent;
    std::vector<float> values(update::floats_for(bytes));
    checkpoint.read(variable.name, std::as_writable_bytes(std::span(values)).first(bytes), slot);
    return values;
  };
  std::map<std::string, std::vector<float>> values, averages;
  train::Digest digest;
  for (const StoredVariable& variable : checkpoint.variables()) {  // in the order of their names
    std::vector<float> stored = read(variable, "");
    digest.add(variable.name, stored);
    if (!update::takes_gradients(variable.dtype)) continue;
    if (variable.dtype == DType::kBFloat16) {
      const std::uint64_t elements =
          std::accumulate(variable.shape.begin(), variable.shape.end(), std::uint64_t{1}, std::multiplies<>());
      stored.insert(stored.begin(), elements - stored.size(), 0.0F);
      update::widen_in_place(stored.data(), elements);
    }
    values[variable.name] = std::move(stored);
    if (std::find(variable.slots.begin(), variable.slots.end(), "ema") != variable.slots.end())
      averages[variable.name] = read(variable, "ema");
  }
  run.digest = digest.value();
  if (!workload_ || settings_.training.sparse.keyed) return run;
  const auto test = [&](std::map<std::string, std::vector<float>>& of_name) {
    std::vector<std::span<const float>> spans;
    for (const train::ParameterSpec& variable : workload_->variables()) spans.emplace_back(of_name[variable.name]);
    return workload_->evaluate(spans);
  };
  run.epochs = workload_->epochs(0);
  run.is_test_of_training = workload_->is_judged_by_training_data();
  run.test = test(values);
  if (averages.size() == values.size()) run.average_test = test(averages);
  return run;
}

// Where the results are that are not on the screen, and what to do with them.
void Launch::report_places() {
  const auto say = [this](const std::string& line) { progress_->print("launch_shm: " + line); };
  const PsSettings& ps = settings_.ps;
  if (!ps.checkpoint.dir.empty())
    if (const auto all = persistence::list_checkpoints(ps.checkpoint.dir); !all.empty()) {
      const auto& [step, folder] = all.front();
      if (const std::uint64_t last = view_->info().global_step; step < last)
        say(fmt::format(
            "the newest checkpoint is {}, of step {}, and the job ended at step {}; the same command goes on "
            "from step {}",
            folder, step, last, step));
      else
        say(fmt::format("the newest checkpoint is {}; with more --steps, the same command goes on from there", folder));
    }
  if (has_report_file_) say(fmt::format("the report is {}; open it in a browser", settings_.report));
  if (!ps.summary.dir.empty()) say(summaries_line(ps.summary.dir));
  if (has_trace_) say(train::trace_line(settings_.trace));
  if (has_recording_)
    say(fmt::format("the recording is {0}; launch_shm --replay {0} runs the job again", settings_.record));
}

void Launch::collect() {
  const std::vector<VariableInfo> variables = view_->variables();
  const bool is_keyed = settings_.training.sparse.keyed;
  if (variables.empty() != is_keyed || view_->info().global_step == view_->info().config.first_step ||
      !std::all_of(variables.begin(), variables.end(), [](const VariableInfo& v) { return v.initialised; }))
    return;
  report::RunReport run = report::RunReport::of_job(*view_);
  run.model = settings_.training.model;
  run.has_own_data = has_program() || settings_.training.shard_data == ShardData::kByLabel;
  for (report::WorkerReport& worker : run.per_worker) {
    run.seconds = std::max(run.seconds, worker.seconds);  // unless all report when they began
    const Member* member = last_of(worker.rank);
    const auto of_child = member != nullptr ? last_objects_of_.find(&member->child) : last_objects_of_.end();
    if (of_child != last_objects_of_.end())
      if (const auto said = of_child->second.find(worker.rank); said != of_child->second.end())
        report::read_times(said->second, worker);
    const auto of_rank = [&](const Member& one) { return one.ranks.has(worker.rank); };
    const auto began = began_of_.find(worker.rank);
    if (began != began_of_.end() && std::count_if(workers_.begin(), workers_.end(), of_rank) > 1)
      worker.extend_to(began->second);
  }
  run.sum_up();
  if (workload_) {
    const auto values_of = [&](std::vector<float> (JobView::*read)(const std::string&) const) {
      std::vector<std::vector<float>> values;
      for (const train::ParameterSpec& variable : workload_->variables())
        values.push_back(((*view_).*read)(variable.name));
      return values;
    };
    run.data = settings_.training.data;
    run.epochs = workload_->epochs(run.steps - run.first_step);
    if (!is_keyed) run.test = workload_->evaluate(spans_of(values_of(&JobView::values)));
    for (const auto& [child, objects] : last_objects_of_)
      for (const auto& [rank, said] : objects)
        if (const std::optional<report::KeyedResult> keyed = report::read_keyed(said)) {
          run.test = keyed->test;
          run.table = keyed->table;
        }
    run.is_test_of_training = workload_->is_judged_by_training_data();
    if (curve_) {
      run.curve = curve_->evaluate(*workload_, run.began_unix);
      run.curve.push_back({run.seconds, run.steps, run.epochs, *run.test});
    }
    const Optimizer& optimizer = settings_.ps.job.optimizer;
    if (optimizer.ema > 0 && !update::traits_of(optimizer.rule).is_sum)
      run.average_test = workload_->evaluate(spans_of(values_of(&JobView::averages)));
    if (!evaluator_ && run.test)
      write_test(settings_.ps.summary, run.steps, *run.test, run.average_test,
                 [this](const std::string& line) { progress_->print("launch_shm: " + line); });
  } else if (!has_program()) {
    run.count = report::CountedValues(view_->values(train::kCountVariable));
  }
  report_ = std::move(run);
}

}  // namespace ps_shm::tools
