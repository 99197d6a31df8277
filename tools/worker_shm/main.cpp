// worker_shm: a worker of a job. Trains a model with the job's ps, or standalone.
#include <fmt/format.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cli/options.hpp"
#include "cli/output.hpp"
#include "common/children.hpp"
#include "common/metric_summaries.hpp"
#include "common/warm_start.hpp"
#include "common/workload.hpp"
#include "persistence/tensor_files.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/worker.hpp"
#include "report/summary.hpp"
#include "train/loop/count_model.hpp"
#include "train/loop/trainer.hpp"
#include "worker_shm/evaluation.hpp"
#include "worker_shm/local_checkpoints.hpp"
#include "worker_shm/several_workers.hpp"
#include "worker_shm/sparse_runs.hpp"
#include "worker_shm/training_summaries.hpp"
#include "worker_shm/worker_run.hpp"

namespace {

using namespace ps_shm;
using tools::say;
using tools::tell;
using tools::WorkerSettings;
using tools::write_out;

train::TrainOptions train_options(const WorkerSettings& settings, const std::string& who, const train::Model& model) {
  train::TrainOptions options;
  options.batch = settings.training.batch;
  options.seed = settings.seed;
  options.delay = settings.delay;
  options.dtype = settings.training.dtype;
  options.push_every = settings.training.push_every;
  options.local_lr = settings.training.local_lr;
  tools::set_hooks(settings, who, options);
  tools::begin_with_file(settings, who, model.parameters(), options);
  return options;
}

int train_alone(const WorkerSettings& settings) {
  const tools::TrainingSettings& training = settings.training;
  const train::DataSplit data = tools::load_dense_data(training);
  const auto model = train::make_model(training.model, data.train.features, data.train.classes);
  JobConfig config = settings.alone;
  if (settings.seed) config.seed = settings.seed;
  train::TrainOptions options = train_options(settings, "standalone", *model);
  tools::complete_job(data.train.count, options.batch != 0 ? options.batch : train::default_batch(data.train), training,
                      config);
  const tools::LocalCheckpoints checkpoints(settings, model->parameters(), config, options);
  std::optional<tools::TrainingSummaries> summaries = tools::training_summaries(settings, 0, config);
  options.observer = summaries ? &*summaries : nullptr;
  train::TrainResult result = train::train_alone(config, *model, data.train, options);
  if (summaries) summaries->finish(result, named(model->parameters(), result.parameters));
  if (result.is_interrupted) {
    const int code = tools::interrupted(settings, "standalone", result);
    return checkpoints.has_lost_last() ? tools::kFailed : code;
  }
  report::RunReport run = report::RunReport::of_one(result, training.model, training.data);
  run.test = report::metrics_of(model->evaluate(result.parameters.values(), data.test));
  if (result.averages) run.average_test = report::metrics_of(model->evaluate(result.averages->values(), data.test));
  tools::write_test(settings.summary, result.last.global_steps, *run.test, run.average_test, tell);
  run.digest = train::digest(*model, result.parameters);
  run.optimizer = to_string(config.optimizer.rule);
  run.first_step = config.first_step;
  run.steps += config.first_step;
  tools::print_report(settings, run);
  return checkpoints.has_lost_last() ? tools::kFailed : 0;
}

int count(Worker& worker, const WorkerSettings& settings, std::optional<train::GpuPlace> place) {
  const std::string who = fmt::format("worker {}", worker.rank());
  train::CountOptions options;
  options.gpu = std::move(place);
  options.warn = [](const std::string& line) { tell(line); };
  options.size = settings.training.size;
  options.steps = settings.training.steps != 0 ? settings.training.steps : tools::kDefaultCountSteps;
  options.interval_seconds = settings.training.interval_seconds;
  options.stop_requested = tools::is_stop_requested;
  options.report = [&](std::uint64_t steps, std::uint64_t global_steps, std::span<const float> values) {
    say(settings, fmt::format("{}: after {} adds ({} global steps), {} = {}", who, steps, global_steps,
                              train::kCountVariable, to_text(report::CountedValues(values))));
  };
  const train::CountResult result = count_up(worker, options);
  if (settings.json)
    write_out(report::worker_json(worker, result.began_unix, result.seconds, true, {}, result.gpu) + "\n");
  worker.leave();
  tools::say_gpu(settings, who, result.gpu);
  say(settings, fmt::format("{}: {}after {} adds in {}, {} = {}", who, result.is_interrupted ? "interrupted " : "",
                            result.steps, report::duration(result.seconds), train::kCountVariable,
                            to_text(report::CountedValues(result.values))));
  return result.is_interrupted ? tools::kInterrupted : 0;
}

int train_in_job(const WorkerSettings& settings) {
  std::optional<train::DataSplit> data;
  if (settings.training.learns()) data = tools::load_dense_data(settings.training);
  const std::unique_ptr<train::SpanLog> trace = tools::trace_of(settings);
  Worker worker = tools::join(settings, trace.get());
  const std::string who = fmt::format("worker {}", worker.rank());
  std::optional<train::GpuPlace> place = tools::choose_place(settings, who, worker.rank());
  if (settings.together) worker.wait_for_workers();
  if (!data) return count(worker, settings, std::move(place));

  if (settings.training.shard_data == tools::ShardData::kByLabel)
    data->train = train::shard_by_label(data->train, worker.rank(), worker.config().workers);
  const auto model = train::make_model(settings.training.model, data->train.features, data->train.classes);
  train::TrainOptions training = train_options(settings, who, *model);
  training.gpu = std::move(place);
  training.trace = trace.get();
  std::optional<tools::TrainingSummaries> summaries = tools::training_summaries(settings, worker.rank());
  training.observer = summaries ? &*summaries : nullptr;
  const train::TrainResult result = train::train(worker, *model, data->train, training);
  if (summaries) summaries->finish(result);
  if (settings.json)
    write_out(report::worker_json(worker, result.began_unix, result.seconds, false, result.phases, result.gpu) + "\n");
  worker.leave();  // no one must wait for the evaluation
  tools::say_gpu(settings, who, result.gpu);
  if (result.is_interrupted) return tools::interrupted(settings, who, result);
  if (worker.is_chief() && !settings.quiet) {
    const train::Metrics test = model->evaluate(result.parameters.values(), data->test);
    say(settings, fmt::format("{}: test accuracy {:.4f}, test loss {:.4f}", who, test.accuracy, test.loss));
    tools::write_test(settings.summary, result.last.global_steps, report::metrics_of(test), std::nullopt, tell);
  }
  return 0;
}

int train(const WorkerSettings& settings) {
  if (settings.training.is_sparse())
    return settings.standalone ? tools::train_sparse_alone(settings) : tools::train_sparse_in_job(settings);
  return settings.standalone ? train_alone(settings) : train_in_job(settings);
}

// Returns the exit code of `body`, also if it throws.
int guarded(const WorkerSettings& settings, const tools::OnFailure& fail, const std::function<int()>& body) try {
  return body();
} catch (const JobFinished& finished) {
  tell(finished.what());
  if (settings.json)
    write_out(report::Json({{"job", settings.alone.job}, {"finished", finished.what()}}).dump() + "\n");
  return 0;
} catch (const Interrupted&) {  // while reading data or waiting for others
  if (settings.quiet) return tools::kInterrupted;
  return fail(tools::kInterrupted,
              settings.evaluate ? "interrupted before the first evaluation" : "interrupted before its first step");
} catch (const std::exception& error) {
  return fail(tools::kFailed, error.what());
}

int run(int argc, char** argv) {
  tools::catch_signals(tools::SecondSignal::kEndsProcess);
  const bool is_launched = tools::end_with_launcher();
  WorkerSettings settings;
  if (const std::optional<int> code = tools::parse(argc, argv, settings)) return *code;
  const auto fail = [](int code, const std::string& message) { return tools::fail("worker_shm", code, message); };
  return guarded(settings, fail, [&] {
    // The launcher has checked it; a replacement in a run under way goes on without summaries.
    if (!is_launched && !settings.summary.dir.empty()) persistence::check_writable_folder(settings.summary.dir);
    if (settings.evaluate) return tools::evaluate(settings);
    int code = settings.workers_per_process == 1
                   ? train(settings)
                   : tools::run_several(settings, [](const auto& one, const auto& fail_one) {
                       return guarded(one, fail_one, [&] { return train(one); });
                     });
    // The launcher has been told, and removes all traces; its job has not failed because of that.
    if (!is_launched && tools::remove_lost_traces(settings) && code == 0) code = tools::kFailed;
    tools::say_places(settings);
    return code;
  });
}

}  // namespace

int main(int argc, char** argv) {
  return ps_shm::tools::run_main("worker_shm", argc, argv, [&] { return run(argc, argv); });
}
