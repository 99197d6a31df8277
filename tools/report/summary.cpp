#include "report/summary.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "config/modes.hpp"
#include "inspection/texts.hpp"
#include "report/figures.hpp"
#include "report/gpu_summary.hpp"
#include "train/loop/count_model.hpp"

namespace ps_shm::report {
namespace {

// Four decimals; a NaN without its sign.
std::string decimal(double value) { return std::isnan(value) ? "nan" : fmt::format("{:.4f}", value); }
std::string decimal(const std::optional<double>& value) { return value ? decimal(*value) : "-"; }

Json number_or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

double per_second(std::uint64_t count, double seconds) { return seconds > 0 ? double(count) / seconds : 0.0; }

// Names of the phases, in the order of a step.
constexpr std::pair<const char*, double train::PhaseSeconds::*> kPhases[] = {
    {"pull", &train::PhaseSeconds::pull},
    {"gradient", &train::PhaseSeconds::gradient},
    {"delay", &train::PhaseSeconds::delay},
    {"push", &train::PhaseSeconds::push},
    {"step", &train::PhaseSeconds::step}};

Json to_json(const train::PhaseSeconds& phases) {
  Json json;
  for (const auto& [name, member] : kPhases) json[name] = phases.*member;
  return json;
}

// Names of the metrics, in their order in the output.
constexpr std::pair<const char*, std::optional<double> Metrics::*> kMetrics[] = {{"accuracy", &Metrics::accuracy},
                                                                                 {"auc", &Metrics::auc},
                                                                                 {"log_loss", &Metrics::log_loss},
                                                                                 {"rmse", &Metrics::rmse}};

Metrics read_metrics(const Json& json) {
  Metrics metrics;
  const auto loss = json.find("loss");  // null for a model that has diverged
  metrics.loss =
      loss != json.end() && loss->is_number() ? loss->get<double>() : std::numeric_limits<double>::quiet_NaN();
  for (const auto& [name, member] : kMetrics)
    if (const auto found = json.find(name); found != json.end() && found->is_number())
      metrics.*member = found->get<double>();
  return metrics;
}

void add(Json& json, const std::string& of, const Metrics& metrics) {
  json[of + "loss"] = metrics.loss;
  for (const auto& [name, member] : kMetrics)
    if (const auto& value = metrics.*member) json[of + name] = *value;
}

std::string to_text(const StalenessSummary& staleness) {
  if (staleness.count == 0) return "-";
  return fmt::format("mean {:.2f}, p50 {}, p99 {}, max {}", staleness.mean, staleness.p50, staleness.p99,
                     staleness.max);
}

// How workers transfer to and from their GPUs, and why: two lines for those that do the same.
std::string gpus_text(const RunReport& run) {
  std::map<std::string, std::vector<std::uint32_t>> ranks_of;
  for (const WorkerReport& worker : run.per_worker)
    if (const std::string text = transfers_text(worker.gpu); !text.empty()) ranks_of[text].push_back(worker.rank);
  std::string all;
  for (const auto& [text, ranks] : ranks_of) {
    const std::size_t end = text.find('\n');
    all += fmt::format("  GPU of {} {}: {}\n    {}\n", ranks.size() == 1 ? "worker" : "workers", fmt::join(ranks, ", "),
                       text.substr(0, end), text.substr(end + 1));
  }
  return all;
}

std::string workers_table(const RunReport& run, Columns columns) {
  std::vector<Row> rows = {{"  worker", "steps", "time"}};
  if (!run.count) rows[0].insert(rows[0].end(), {"examples/s", "loss"});
  if (run.may_be_stale()) rows[0].emplace_back("staleness");
  rows[0].emplace_back("retries");
  for (const WorkerReport& worker : run.per_worker) {
    Row& row = rows.emplace_back();
    row = {fmt::to_string(worker.rank), fmt::to_string(worker.steps), duration(worker.seconds)};
    if (!run.count)
      row.insert(row.end(), {fmt::format("{:.0f}", per_second(worker.examples, worker.seconds)), decimal(worker.loss)});
    if (run.may_be_stale()) row.push_back(mean_text(worker.staleness));
    row.push_back(fmt::to_string(worker.retries));
  }
  return table(rows, columns);
}

}  // namespace

std::string mean_text(const StalenessSummary& staleness) {
  return staleness.count != 0 ? fmt::format("{:.2f}", staleness.mean) : "-";
}

WorkerReport::WorkerReport(const WorkerInfo& info)
    : rank(info.rank),
      steps(info.steps),
      examples(info.examples),
      seconds(info.seconds),
      loss(info.examples != 0 ? std::optional(info.loss) : std::nullopt),
      staleness(info.staleness),
      retries(info.push_retries + info.pull_retries),
      dropped(info.dropped) {}

void WorkerReport::extend_to(double began) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  const double end = began_unix != 0.0 ? began_unix + seconds : now.count();
  began_unix = began;
  seconds = std::max(0.0, end - began);
  phases.reset();  // they are those of the last owner only
}

CountedValues::CountedValues(std::span<const float> values) {
  if (values.empty()) return;
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  first = double(values[0]);
  min = double(*least);
  max = double(*most);
}

RunReport RunReport::of_config(const JobConfig& config) {
  RunReport run;
  run.job = config.job;
  run.mode = to_string(config.mode);
  run.layout = to_string(config.layout);
  run.adds = to_string(config.adds);
  run.optimizer = to_string(config.optimizer.rule);
  run.workers = config.workers;
  run.first_step = run.steps = config.first_step;
  return run;
}

RunReport RunReport::of_job(const JobView& view) {
  const JobInfo info = view.info();
  RunReport run = of_config(info.config);
  run.steps = info.global_step;
  run.staleness = view.staleness();
  run.staleness_counts = view.staleness_counts();
  run.digest = view.digest();
  if (traits_of(info.config.mode).has_staleness_bound) run.max_clock_skew = 0;
  for (const WorkerInfo& worker : view.workers()) {
    run.per_worker.emplace_back(worker);
    if (run.max_clock_skew) run.max_clock_skew = std::max(*run.max_clock_skew, worker.max_clock_skew);
  }
  run.workers = static_cast<std::uint32_t>(run.per_worker.size());  // an elastic job may have had others than at first
  return run;
}

RunReport RunReport::of_one(const train::TrainTotals& totals, const std::string& model, const std::string& data) {
  WorkerReport worker;
  worker.steps = totals.last.steps;
  worker.examples = totals.last.examples;
  worker.began_unix = totals.began_unix;
  worker.seconds = totals.seconds;
  if (worker.steps != 0) worker.loss = totals.last.loss;
  RunReport run;
  run.mode = "standalone";
  run.model = model;
  run.data = data;
  run.steps = worker.steps;
  run.per_worker = {worker};
  run.sum_up();
  return run;
}

bool RunReport::may_be_stale() const {
  const std::optional<Mode> known = mode_named(mode);
  return known && !traits_of(*known).steps_together();
}

void RunReport::sum_up() {
  double begin = std::numeric_limits<double>::infinity(), end = 0.0;
  double losses = 0.0;
  std::uint32_t with_loss = 0;
  for (const WorkerReport& worker : per_worker) {
    examples += worker.examples;
    retries += worker.retries;
    dropped += worker.dropped;
    if (worker.loss) losses += *worker.loss, ++with_loss;
    if (worker.began_unix == 0.0) continue;
    begin = std::min(begin, worker.began_unix);
    end = std::max(end, worker.began_unix + worker.seconds);
  }
  if (with_loss != 0) loss = losses / with_loss;
  if (end <= begin) return;
  began_unix = begin;
  seconds = end - begin;
}

Metrics metrics_of(const train::Metrics& metrics) {
  Metrics all;
  all.loss = metrics.loss;
  all.accuracy = metrics.accuracy;
  return all;
}

std::string to_text(const Metrics& metrics, const std::string& of) {
  std::string text;
  for (const auto& [name, member] : kMetrics) {
    const std::string_view words = name == std::string_view("log_loss") ? "log loss" : name;
    if (const auto& value = metrics.*member) text += fmt::format("{}{} {}, ", of, words, decimal(*value));
  }
  return text + fmt::format("{}loss {}", of, decimal(metrics.loss));
}

std::string to_text(const CountedValues& values) {
  return values.min == values.max ? fmt::format("{}", values.first) : fmt::format("{} to {}", values.min, values.max);
}

Json to_json(const WorkerReport& worker, bool is_count) {
  Json json = {{"rank", worker.rank},
               {"steps", worker.steps},
               {"seconds", worker.seconds},
               {"steps_per_second", per_second(worker.steps, worker.seconds)}};
  if (!is_count) {
    json["examples_per_second"] = per_second(worker.examples, worker.seconds);
    json["training_loss"] = number_or_null(worker.loss);
  }
  json["staleness"] = figures_json(worker.staleness);
  json["retries"] = worker.retries;
  json["dropped"] = worker.dropped;
  json["seconds_in"] = worker.phases ? to_json(*worker.phases) : Json();
  if (!worker.gpu.is_null()) json["gpu"] = worker.gpu;
  return json;
}

void read_times(const Json& of_worker, WorkerReport& worker) {
  const auto number = [](const Json& json, const char* name, double otherwise) {
    const auto found = json.find(name);
    return found != json.end() && found->is_number() ? found->get<double>() : otherwise;
  };
  worker.began_unix = number(of_worker, "began", worker.began_unix);
  worker.seconds = number(of_worker, "seconds", worker.seconds);
  if (const auto gpu = of_worker.find("gpu"); gpu != of_worker.end()) worker.gpu = *gpu;
  const auto phases = of_worker.find("seconds_in");
  if (phases == of_worker.end() || !phases->is_object()) return;
  worker.phases.emplace();
  for (const auto& [name, member] : kPhases) (*worker.phases).*member = number(*phases, name, 0.0);
}

std::string worker_json(const Worker& worker, double began_unix, double seconds, bool is_count,
                        const std::optional<train::PhaseSeconds>& phases, const std::optional<train::GpuReport>& gpu,
                        const std::optional<KeyedResult>& keyed) {
  const JobView view(worker.config().job);
  const std::vector<WorkerInfo> workers = view.workers();
  const auto own =
      std::find_if(workers.begin(), workers.end(), [&](const WorkerInfo& info) { return info.rank == worker.rank(); });
  WorkerReport report;
  if (own != workers.end()) report = WorkerReport(*own);
  report.seconds = seconds;
  report.phases = phases;
  if (gpu) report.gpu = to_json(*gpu);
  Json json = to_json(report, is_count);
  json["began"] = began_unix;
  if (keyed) {
    add(json["test"], "", keyed->test);
    json["table"] = figures_json(keyed->table);
  }
  return json.dump();
}

std::optional<KeyedResult> read_keyed(const Json& of_worker) {
  if (!of_worker.contains("test") || !of_worker.contains("table")) return std::nullopt;
  KeyedResult keyed;
  keyed.test = read_metrics(of_worker["test"]);
  inspection::for_each_figure<TableStatistics>(
      [&](const auto& figure) { keyed.table.*figure.read = of_worker["table"].value(figure.name, std::uint64_t{0}); });
  return keyed;
}

std::string evaluation_json(std::uint64_t generation, std::uint64_t step, double unix_seconds, const Metrics& metrics) {
  Json json = {{"generation", generation}, {"step", step}, {"unix_seconds", unix_seconds}};
  add(json, "", metrics);
  return json.dump();
}

std::optional<CurvePoint> read_evaluation(const Json& json) {
  if (!json.is_object() || !json.contains("generation")) return std::nullopt;
  CurvePoint point;
  point.seconds = json.value("unix_seconds", 0.0);
  point.step = json.value("step", std::uint64_t{0});
  point.metrics = read_metrics(json);
  return point;
}

Json to_json(const RunReport& run) {
  Json json;
  for (const auto& [key, text] : {std::pair{"job", &run.job},
                                  {"mode", &run.mode},
                                  {"layout", &run.layout},
                                  {"adds", &run.adds},
                                  {"optimizer", &run.optimizer},
                                  {"model", &run.model},
                                  {"data", &run.data}})
    if (!text->empty()) json[key] = *text;
  json["workers"] = run.workers;
  json["first_step"] = run.first_step;
  json["steps"] = run.steps;
  json["seconds"] = run.seconds;
  json["steps_per_second"] = per_second(run.steps - run.first_step, run.seconds);
  if (run.count) {
    json["value"] = run.count->first;
    json["value_min"] = run.count->min;
    json["value_max"] = run.count->max;
  } else {
    json["examples_per_second"] = per_second(run.examples, run.seconds);
    json["training_loss"] = number_or_null(run.loss);
  }
  if (run.epochs) json["epochs"] = *run.epochs;
  if (run.test) add(json, run.is_test_of_training ? "train_" : "test_", *run.test);
  if (run.average_test) add(json, "ema_test_", *run.average_test);
  for (const auto& [key, points] : {std::pair{"curve", &run.curve}, {"evaluations", &run.evaluations}})
    for (const CurvePoint& point : *points) {
      Json one = {{"seconds", point.seconds}, {"step", point.step}};
      if (point.epoch) one["epoch"] = *point.epoch;
      add(one, "", point.metrics);
      json[key].push_back(std::move(one));
    }
  json["staleness"] = figures_json(run.staleness);
  Json& histogram = json["staleness"]["histogram"];  // of [smallest of a bucket, pushes in it]
  for (const StalenessCount& bucket : run.staleness_counts) histogram.push_back({bucket.least, bucket.count});
  if (run.max_clock_skew) json["max_clock_skew"] = *run.max_clock_skew;
  json["dropped"] = run.dropped;
  json["retries"] = run.retries;
  if (run.table)
    json["table"] = figures_json(*run.table);
  else
    json["digest"] = fmt::format("{:016x}", run.digest);
  json["per_worker"] = Json::array();
  for (const WorkerReport& worker : run.per_worker)
    json["per_worker"].push_back(to_json(worker, run.count.has_value()));
  return json;
}

std::string to_text(const RunReport& run, Columns columns) {
  std::string text = run.job.empty() ? run.mode : fmt::format("job {}: {}", run.job, run.mode);
  if (!run.layout.empty()) text += fmt::format(", {}", run.layout);
  if (run.layout == to_string(Layout::kInplace)) text += fmt::format(", {} adds", run.adds);
  if (!run.optimizer.empty() && !run.count) text += ", " + run.optimizer;
  text += fmt::format(", {}{}, {} {}\n", run.model, run.data.empty() ? "" : " on " + run.data, run.workers,
                      run.workers == 1 ? "worker" : "workers");
  const std::uint64_t steps = run.steps - run.first_step;
  text += fmt::format("  {} steps{} in {}: {}", steps,
                      run.first_step != 0 ? fmt::format(" starting at step {}", run.first_step) : "",
                      duration(run.seconds), rate(per_second(steps, run.seconds), "steps"));
  if (!run.count && run.examples != 0) text += ", " + rate(per_second(run.examples, run.seconds), "examples");
  if (run.epochs) text += fmt::format(", {:.1f} epochs", *run.epochs);
  text += '\n';
  if (run.count) text += fmt::format("  {} = {}\n", train::kCountVariable, to_text(*run.count));
  if (run.test && run.is_test_of_training)
    text +=
        fmt::format("  on the training data: {}, last batches' loss {}\n", to_text(*run.test, ""), decimal(run.loss));
  else if (run.test)
    text += fmt::format("  {}, training loss {}\n", to_text(*run.test, "test "), decimal(run.loss));
  if (run.average_test) text += fmt::format("  of the moving averages: {}\n", to_text(*run.average_test, "test "));
  if (!run.evaluations.empty()) {
    const auto best =
        std::min_element(run.evaluations.begin(), run.evaluations.end(), [](const CurvePoint& a, const CurvePoint& b) {
          return !std::isnan(a.metrics.loss) && !(a.metrics.loss >= b.metrics.loss);  // prefers a number to a NaN
        });
    text += fmt::format("  evaluated {} {}: the lowest loss was {} at step {}\n", run.evaluations.size(),
                        run.evaluations.size() == 1 ? "time" : "times", decimal(best->metrics.loss), best->step);
  }
  text += fmt::format("  {}{} retries, {} dropped\n",
                      run.may_be_stale() ? fmt::format("staleness {}; ", to_text(run.staleness)) : "", run.retries,
                      run.dropped);
  if (run.max_clock_skew) text += fmt::format("  maximum clock skew {} steps\n", *run.max_clock_skew);
  if (run.table)
    text +=
        fmt::format("  table: {} of at most {} rows in {:.1f} MiB; {} evicted, {} pushes not admitted, {} refused\n",
                    run.table->rows, run.table->max_rows, double(run.table->bytes) / (1 << 20), run.table->evicted,
                    run.table->unadmitted, run.table->refused);
  else if (!run.may_be_stale())  // otherwise it depends on the order of the pushes, and no two runs have the same
    text += fmt::format("  digest {:016x}\n", run.digest);
  for (const WorkerReport& worker : run.per_worker)
    if (const std::string forgotten = forgotten_text(worker.rank, worker.steps, worker.dropped);
        run.has_own_data && !forgotten.empty())
      text += fmt::format("  {}; what only it has seen is not in the model\n", forgotten);
  text += gpus_text(run);
  if (run.per_worker.size() > 1) text += workers_table(run, columns);
  return fitted(text, columns);
}

}  // namespace ps_shm::report
