#include "sparse_runs.hpp"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "local_checkpoints.hpp"
#include "output.hpp"
#include "ps/errors.hpp"
#include "train/sparse/sparse_metrics.hpp"
#include "train/sparse/sparse_trainer.hpp"
#include "training_summaries.hpp"
#include "warm_start.hpp"
#include "worker_run.hpp"
#include "workload.hpp"

namespace ps::tools {
namespace {

train::SparseSourceOptions source_options(const SparseSettings& sparse) {
  train::SparseSourceOptions options;
  options.format = sparse.format;
  options.first_index = sparse.first_index;
  options.hash_bits = sparse.hash_bits;
  options.cache = sparse.cache;
  options.stop_requested = is_stop_requested;
  options.notice = [](const std::string& line) { tell(line); };
  return options;
}

train::SparseData read_data(const TrainingSettings& training, Worker* worker) {
  const train::SparseSourceOptions options = source_options(training.sparse);
  if (training.sparse.share_data && worker != nullptr) return train::SparseData::share(*worker, training.data, options);
  return train::SparseData::read(training.data, options);
}

// The test set is of the same kind as its training set, and has its ids.
train::SparseData read_test_data(const SparseSettings& sparse, const train::SparseData& training) {
  using Format = train::SparseSourceOptions::Format;
  const bool is_rating = training.info().kind == train::SparseKind::kRatings;
  train::SparseSourceOptions options = source_options(sparse);
  options.format = is_rating ? Format::kRatings : Format::kLibsvm;
  if (is_rating) options.names_of = &training;
  options.first_index = training.info().first_index;
  options.features = training.info().features;
  return train::SparseData::read(sparse.test_data, options);
}

train::SparsePart part_of(const SparseSettings& sparse) {
  return {sparse.test_share.value_or(sparse.test_data.empty() ? kDefaultTestShare : 0.0), false};
}

train::SparseTrainOptions train_options(const WorkerSettings& settings, const SparseSetup& setup,
                                        const std::string& who) {
  train::SparseTrainOptions options;
  options.batch = setup.batch();
  options.combine = settings.training.sparse.combine;
  options.factor_l2 = settings.training.sparse.factor_l2;
  options.seed = settings.seed;
  options.delay = settings.delay;
  set_hooks(settings, who, options);
  begin_with_file(settings, who, {&setup.model().table(), 1}, options);
  return options;
}

}  // namespace

SparseSetup::SparseSetup(const TrainingSettings& training, bool is_to_be_tested, Worker* worker)
    : data_(read_data(training, worker)),
      part_(part_of(training.sparse)),
      examples_(train::count_examples(data_.info(), part_)),
      batch_(training.batch != 0 ? training.batch : train::SparseTrainOptions::kBatch) {
  train::SparseModelOptions options;
  options.factors = training.sparse.factors.value_or(options.factors);
  options.bias = training.sparse.bias;
  model_ = train::make_sparse_model(training.model, data_.info(), options);
  if (is_to_be_tested && !training.sparse.test_data.empty()) test_ = read_test_data(training.sparse, data_);
  if (part_.test_share > 0 && examples_ == data_.info().examples)
    throw Error(
        fmt::format("{}: a share of {} of its {} examples is none to test with; give a larger --test-share, or 0 "
                    "to test with the training data",
                    data_.name(), part_.test_share, examples_));
}

report::Metrics SparseSetup::evaluate(std::span<const float> table) const {
  const std::uint64_t features = data_.info().features;
  if (test_) return train::evaluate(*model_, table, features, *test_, {});
  return train::evaluate(*model_, table, features, data_, {part_.test_share, part_.test_share > 0});
}

int train_sparse_alone(const WorkerSettings& settings) {
  const TrainingSettings& training = settings.training;
  const SparseSetup setup(training, true);
  JobConfig config = settings.alone;
  config.seed = settings.seed.value_or(config.seed);
  complete_job(setup.examples(), setup.batch(), training, config);
  train::SparseTrainOptions options = train_options(settings, setup, "standalone");
  const LocalCheckpoints checkpoints(settings, {&setup.model().table(), 1}, config, options);
  std::optional<TrainingSummaries> summaries = training_summaries(settings, 0, config);
  options.observer = summaries ? &*summaries : nullptr;
  const train::SparseAloneResult result =
      train::train_sparse_alone(config, setup.model(), setup.data(), setup.part(), options);
  if (summaries) summaries->finish(result, {{setup.model().table().name, result.table}});
  if (result.is_interrupted) return interrupted(settings, "standalone", result);
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
  return 0;
}

int train_sparse_in_job(const WorkerSettings& settings) {
  const bool tells = !settings.quiet;
  std::optional<SparseSetup>
      read_first;  // an error in the data is told before the job is joined, but where that has it
  if (!settings.training.sparse.share_data) read_first.emplace(settings.training, tells);
  const std::unique_ptr<train::SpanLog> trace = trace_of(settings);
  Worker worker = join(settings, trace.get());
  if (!read_first) read_first.emplace(settings.training, tells, &worker);
  const SparseSetup& setup = *read_first;
  const std::string who = fmt::format("worker {}", worker.rank());
  if (settings.together) worker.wait_for_workers();
  std::optional<Variable> table;
  train::SparseTrainOptions options = train_options(settings, setup, who);
  options.trace = trace.get();
  std::optional<TrainingSummaries> summaries = training_summaries(settings, worker.rank());
  options.observer = summaries ? &*summaries : nullptr;
  const train::TrainTotals totals =
      train::train_sparse(worker, setup.model(), setup.data(), setup.part(), options, &table);
  if (summaries) summaries->finish(totals);
  if (settings.json)
    write_out(report::worker_json(worker, totals.began_unix, totals.seconds, false, totals.phases, std::nullopt) +
              "\n");
  std::vector<float> values;
  if (tells && worker.is_chief() && !totals.is_interrupted) {
    values.resize(table->element_count());
    worker.pull(*table, values);
  }
  worker.leave();  // nobody shall wait for the evaluation
  if (totals.is_interrupted) return interrupted(settings, who, totals);
  if (!values.empty()) {
    const report::Metrics test = setup.evaluate(values);
    say(settings,
        fmt::format("{}: {}", who, report::to_text(test, setup.is_judged_by_training_data() ? "training " : "test ")));
    write_test(settings.summary, totals.last.global_steps, test, std::nullopt, tell);
  }
  return 0;
}

}  // namespace ps::tools
