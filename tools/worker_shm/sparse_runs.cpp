#include "worker_shm/sparse_runs.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "cli/output.hpp"
#include "common/children.hpp"
#include "common/metric_summaries.hpp"
#include "common/sparse_setup.hpp"
#include "common/workload.hpp"
#include "ps_shm/errors.hpp"
#include "train/loop/sparse_trainer.hpp"
#include "worker_shm/local_checkpoints.hpp"
#include "worker_shm/training_summaries.hpp"
#include "worker_shm/worker_run.hpp"

namespace ps_shm::tools {
namespace {

train::SparseTrainOptions train_options(const WorkerSettings& settings, const SparseSetup& setup,
                                        const std::string& who) {
  train::SparseTrainOptions options;
  options.batch = setup.batch();
  options.combine = settings.training.sparse.combine;
  options.factor_l2 = settings.training.sparse.factor_l2;
  options.seed = settings.seed;
  options.dtype = settings.training.dtype;
  options.delay = settings.delay;
  set_hooks(settings, who, options);
  begin_with_file(settings, who, {&setup.model().table(), 1}, options);
  return options;
}

// The last worker evaluates a table by key. False also if a stop is requested.
bool is_last(Worker& worker) {
  try {
    return worker.wait_to_be_last();
  } catch (const Interrupted&) {
    return false;
  }
}

}  // namespace

int train_sparse_alone(const WorkerSettings& settings) {
  const TrainingSettings& training = settings.training;
  const SparseSetup setup(training, true);
  JobConfig config = settings.alone;
  if (settings.seed) config.seed = settings.seed;
  complete_job(setup.examples(), setup.batch(), training, config);
  train::SparseTrainOptions options = train_options(settings, setup, "standalone");
  const LocalCheckpoints checkpoints(settings, {&setup.model().table(), 1}, config, options);
  std::optional<TrainingSummaries> summaries = training_summaries(settings, 0, config);
  options.observer = summaries ? &*summaries : nullptr;
  const train::SparseAloneResult result =
      train::train_sparse_alone(config, setup.model(), setup.data(), setup.part(), options);
  if (summaries) summaries->finish(result, {{setup.model().table().name, result.table}});
  if (result.is_interrupted) {
    const int code = interrupted(settings, "standalone", result);
    return checkpoints.has_lost_last() ? kFailed : code;
  }
  report::RunReport run = report::RunReport::of_one(result, training.model, training.data);
  run.optimizer = to_string(config.optimizer.rule);
  run.first_step = config.first_step;
  run.steps += config.first_step;
  run.epochs = double(run.examples) / double(setup.examples());
  run.test = setup.evaluate(result.table);
  run.is_test_of_training = setup.is_judged_by_training_data();
  write_test(settings.summary, result.last.global_steps, *run.test, std::nullopt, tell);
  run.digest = train::digest(setup.model(), result.table);
  print_report(settings, run);
  return checkpoints.has_lost_last() ? kFailed : 0;
}

int train_sparse_in_job(const WorkerSettings& settings) {
  const SparseSettings& sparse = settings.training.sparse;
  const bool tells = !settings.quiet, may_test = tells || sparse.keyed;
  std::optional<SparseSetup>
      read_first;  // an error in the data is reported before joining the job, unless the job has the data
  if (!sparse.share_data) read_first.emplace(settings.training, may_test);
  const std::unique_ptr<train::SpanLog> trace = trace_of(settings);
  Worker worker = join(settings, trace.get());
  if (!read_first) read_first.emplace(settings.training, may_test, &worker);
  const SparseSetup& setup = *read_first;
  const std::string who = fmt::format("worker {}", worker.rank());
  std::optional<train::GpuPlace> place = choose_place(settings, who, worker.rank());
  if (settings.together) worker.wait_for_workers();
  std::optional<Variable> variable;
  std::optional<Table> table;
  train::SparseTrainOptions options = train_options(settings, setup, who);
  options.gpu = std::move(place);
  options.trace = trace.get();
  std::optional<TrainingSummaries> summaries = training_summaries(settings, worker.rank());
  options.observer = summaries ? &*summaries : nullptr;
  const train::SparseResult totals =
      sparse.keyed ? train::train_keyed(worker, setup.model(), setup.data(), setup.part(), options, sparse.table, &table)
                   : train::train_sparse(worker, setup.model(), setup.data(), setup.part(), options, &variable);
  if (summaries) summaries->finish(totals);
  std::optional<report::KeyedResult> keyed;
  if (table && !totals.is_interrupted && is_last(worker)) {
    const TableStatistics statistics = table->statistics();  // without the pulls of the evaluation
    keyed = report::KeyedResult{setup.evaluate(*table), statistics};
  }
  if (settings.json)
    write_out(report::worker_json(worker, totals.began_unix, totals.seconds, false, totals.phases, totals.gpu, keyed) +
              "\n");
  std::vector<float> values;
  if (variable && tells && worker.is_chief() && !totals.is_interrupted) {
    values.resize(variable->element_count());
    worker.pull(*variable, values);
  }
  worker.leave();  // no one must wait for the evaluation
  say_gpu(settings, who, totals.gpu);
  if (totals.is_interrupted) return interrupted(settings, who, totals);
  std::optional<report::Metrics> test;
  if (tells && keyed) test = keyed->test;
  if (!values.empty()) test = setup.evaluate(values);
  if (test) {
    say(settings,
        fmt::format("{}: {}", who, report::to_text(*test, setup.is_judged_by_training_data() ? "training " : "test ")));
    write_test(settings.summary, totals.last.global_steps, *test, std::nullopt, tell);
  }
  return 0;
}

}  // namespace ps_shm::tools
