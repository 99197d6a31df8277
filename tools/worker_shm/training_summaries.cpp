#include "worker_shm/training_summaries.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

#include "cli/option_tables.hpp"
#include "cli/output.hpp"
#include "common/repeating.hpp"
#include "config/job_settings.hpp"
#include "worker_shm/worker_run.hpp"

namespace ps_shm::tools {
namespace {

double squares_of(std::span<const float> values) {
  double sum = 0.0;
  for (const float value : values) sum += double(value) * double(value);
  return sum;
}

// The norm of all gradients together, and of each; their histograms.
void add_gradients(persistence::Summary& summary, const train::StepView& view) {
  if (view.gradients.empty()) return;
  const std::string one = view.is_update ? "update" : "gradient";
  double all = 0.0;
  for (const auto& [name, values] : view.gradients) {
    const double squares = squares_of(values);
    all += squares;
    summary.add_scalar(fmt::format("{}_norm/{}", one, name), std::sqrt(squares));
    summary.add_histogram(fmt::format("{}s/{}", one, name), persistence::histogram_of(values));
  }
  summary.add_scalar(one + "_norm", std::sqrt(all));
}

void add_speed(persistence::Summary& summary, const char* what, const std::optional<double>& speed) {
  if (speed) summary.add_scalar(fmt::format("speed/{}_per_second", what), *speed);
}

persistence::Summary settings_of(const WorkerSettings& worker) {
  persistence::Summary summary;
  summary.add_text("settings", settings_table(training_settings(), worker.training));
  return summary;
}

}  // namespace

TrainingSummaries::TrainingSummaries(const WorkerSettings& settings, std::uint32_t rank, std::optional<JobConfig> alone,
                                     LogCallback log)
    : worker_(settings.summary, fmt::format("worker-{}", rank), settings_of(settings), log), alone_(std::move(alone)) {
  if (!alone_) return;
  persistence::Summary opening;
  opening.add_text("settings", settings_table(config::job_settings(), config::resolved(*alone_)));
  ps_.emplace(settings.summary, "ps", std::move(opening), std::move(log));
}

void TrainingSummaries::observe(const train::StepView& view) {
  persistence::Summary summary;
  const double now = steady_seconds();
  const std::optional<double> steps = steps_.per_second(now, view.steps);
  const std::optional<double> examples = examples_.per_second(now, view.examples);
  summary.add_scalar("loss", view.loss);
  add_speed(summary, "steps", steps);
  add_speed(summary, "examples", examples);
  add_gradients(summary, view);
  worker_.write(view.step, summary);
  if (!ps_) return;
  persistence::Summary of_ps;
  const Optimizer& optimizer = alone_->optimizer;
  const float rate = optimizer.lr.value_or(default_lr(optimizer.rule));
  of_ps.add_scalar("loss", view.loss);
  of_ps.add_scalar("learning_rate", double(optimizer.schedule.rate(rate, view.step)));
  add_speed(of_ps, "steps", steps);
  add_speed(of_ps, "examples", examples);
  for (const auto& [name, values] : view.parameters)
    of_ps.add_histogram(fmt::format("parameters/{}", name), persistence::histogram_of(values));
  ps_->write(view.step, of_ps);
}

void TrainingSummaries::finish(const train::TrainTotals& totals, std::vector<train::NamedValues> parameters) {
  if (totals.last.steps == 0 || !worker_.lacks(totals.last.global_steps)) return;
  observe({.step = totals.last.global_steps,
           .steps = totals.last.steps,
           .examples = totals.last.examples,
           .loss = totals.last.loss,
           .gradients = {},
           .parameters = std::move(parameters)});
}

std::optional<TrainingSummaries> training_summaries(const WorkerSettings& settings, std::uint32_t rank,
                                                    std::optional<JobConfig> alone) {
  if (settings.summary.dir.empty()) return std::nullopt;
  const std::string who = alone ? "standalone" : fmt::format("worker {}", rank);
  return std::optional<TrainingSummaries>(std::in_place, settings, rank, std::move(alone),
                                          [who](const std::string& line) { tell(fmt::format("{}: {}", who, line)); });
}

}  // namespace ps_shm::tools
