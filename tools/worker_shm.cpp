// worker_shm: a worker of a job. Trains a model with the job's ps, or alone.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "children.hpp"
#include "device/probe.hpp"
#include "embedded_digits.hpp"
#include "options.hpp"
#include "ps/errors.hpp"
#include "ps/worker.hpp"
#include "report/gpu_summary.hpp"
#include "report/progress.hpp"
#include "report/summary.hpp"
#include "train/count_model.hpp"
#include "train/trainer.hpp"

namespace {

using namespace ps;
using tools::WorkerSettings;

bool is_stop_requested() { return tools::stop_requests() != 0; }
void print_line(std::FILE* out, const std::string& line) {
  std::fprintf(out, "%s\n", line.c_str());
  std::fflush(out);
}

// For people. With --json, stdout is for the object alone.
void say(const WorkerSettings& settings, const std::string& line) {
  if (!settings.quiet) print_line(settings.json ? stderr : stdout, line);
}

train::TrainOptions train_options(const WorkerSettings& settings, const std::string& who) {
  train::TrainOptions options;
  options.batch = settings.training.batch;
  options.seed = settings.seed;
  options.delay = settings.delay;
  options.push_every = settings.training.push_every;
  options.local_learning_rate = settings.training.local_learning_rate;
  options.stop_requested = is_stop_requested;
  options.report = [=](const train::TrainStatus& status) { say(settings, report::worker_line(who, status)); };
  options.warn = [](const std::string& line) { print_line(stderr, line); };
  return options;
}

int train_alone(const WorkerSettings& settings) {
  const tools::TrainingSettings& training = settings.training;
  const train::DataSplit data = train::load_data(training.data, train::embedded_digits());
  const auto model = train::make_model(training.model, data.train.features, data.train.classes);
  JobConfig config = settings.alone;
  config.seed = settings.seed.value_or(config.seed);
  config.steps = training.steps != 0 ? training.steps : train::default_steps(training.data);
  train::TrainResult result = train::train_alone(config, *model, data.train, train_options(settings, "standalone"));
  if (result.is_interrupted) return tools::kInterrupted;
  report::RunReport run = report::RunReport::of_one(result, *model, data.test, training.model, training.data);
  run.optimizer = to_string(config.optimizer.rule);
  std::fputs((settings.json ? to_json(run).dump() + "\n" : to_text(run)).c_str(), stdout);
  return 0;
}

// From here on the process runs next to its GPU, if it gets one.
std::optional<train::GpuPlace> choose_place(const WorkerSettings& settings, const std::string& who,
                                            std::uint32_t rank) {
  std::string notice;
  auto place = train::choose_gpu_place(settings.device, settings.wire, rank, notice);
  if (place) place->stream_waits = !settings.training.no_stream_waits;
  if (!notice.empty()) print_line(stderr, fmt::format("{}: {}", who, notice));  // also where reports are not wanted
  return place;
}

void say_gpu(const WorkerSettings& settings, const std::string& who, const std::optional<train::GpuReport>& gpu) {
  if (gpu) say(settings, fmt::format("{}: {}", who, report::to_text(*gpu)));
}

int count(Worker& worker, const WorkerSettings& settings, std::optional<train::GpuPlace> place) {
  const std::string who = fmt::format("worker {}", worker.rank());
  train::CountOptions options;
  options.gpu = std::move(place);
  options.warn = [](const std::string& line) { print_line(stderr, line); };
  options.size = settings.training.size;
  options.steps = settings.training.steps != 0 ? settings.training.steps : tools::kDefaultCountSteps;
  options.interval_seconds = settings.training.interval_seconds;
  options.stop_requested = is_stop_requested;
  options.report = [&](std::uint64_t steps, std::uint64_t global_steps) {
    say(settings, fmt::format("{}: after {} adds ({} global steps)", who, steps, global_steps));
  };
  const train::CountResult result = count_up(worker, options);
  if (settings.json)
    print_line(stdout, report::worker_json(worker, result.began_unix, result.seconds, true, {}, result.gpu));
  worker.leave();
  say_gpu(settings, who, result.gpu);
  say(settings, fmt::format("{}: after {} adds in {:.2f} s, {} = {}", who, result.steps, result.seconds,
                            train::kCountVariable, to_text(report::CountedValues(result.values))));
  return result.is_interrupted ? tools::kInterrupted : 0;
}

int train_in_job(const WorkerSettings& settings) {
  std::optional<train::DataSplit> data;
  if (!settings.training.is_count()) data = train::load_data(settings.training.data, train::embedded_digits());
  WorkerOptions options;
  options.job = settings.alone.job;
  options.rank = settings.rank;
  options.threads = settings.threads;
  options.wait_job_seconds = settings.training.wait_job_seconds;
  options.stop_requested = is_stop_requested;
  Worker worker(options);
  const std::string who = fmt::format("worker {}", worker.rank());
  std::optional<train::GpuPlace> place = choose_place(settings, who, worker.rank());
  if (settings.together) worker.wait_for_workers();
  if (!data) return count(worker, settings, std::move(place));

  const auto model = train::make_model(settings.training.model, data->train.features, data->train.classes);
  train::TrainOptions training = train_options(settings, who);
  training.gpu = std::move(place);
  const train::TrainResult result = train::train(worker, *model, data->train, training);
  if (settings.json)
    print_line(stdout,
               report::worker_json(worker, result.began_unix, result.seconds, false, result.phases, result.gpu));
  worker.leave();  // nobody shall wait for the evaluation
  say_gpu(settings, who, result.gpu);
  if (result.is_interrupted) return tools::kInterrupted;
  if (worker.is_chief() && !settings.quiet) {
    const train::Metrics test = model->evaluate(result.parameters.values(), data->test);
    say(settings, fmt::format("{}: test accuracy {:.4f}, test loss {:.4f}", who, test.accuracy, test.loss));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  tools::catch_signals(tools::SecondSignal::kEndsProcess);
  tools::end_with_launcher();
  WorkerSettings settings;
  if (const std::optional<int> code = tools::parse(argc, argv, settings)) return *code;
  try {
    return settings.standalone ? train_alone(settings) : train_in_job(settings);
  } catch (const JobFinished& finished) {
    print_line(stderr, finished.what());
    return 0;
  } catch (const Interrupted&) {
    return tools::kInterrupted;
  } catch (const std::exception& error) {
    return tools::fail("worker_shm", tools::kFailed, error.what());
  }
}
