#include "measure.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "counting_model.hpp"
#include "train/models/sparse/sparse_metrics.hpp"

namespace ps_shm::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxCounted = 1 << 24;  // examples: so far float32 counts exactly

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Task task_of(const Configuration& configuration, const Measuring& measuring, const train::SparseData& data) {
  return {.data = data,
          .make_model =
              [&measuring, &data] {
                return train::make_sparse_model(measuring.model, data.info(), {.factors = measuring.factors});
              },
          .batch = measuring.batch,
          .combine = configuration.combine,
          .lr = measuring.lr,
          .l2 = measuring.l2,
          .back_off = measuring.back_off,
          .seed = measuring.seed};
}

Task counting_task(const Configuration& configuration, const Measuring& measuring, const train::SparseData& data) {
  Task task = task_of(configuration, measuring, data);
  const std::uint64_t rows = data.info().features, width = measuring.model == "rows" ? measuring.width : 1;
  task.make_model = [rows, width] { return std::make_unique<CountingModel>(rows, width); };
  task.lr = 1.0F;
  task.l2 = 0.0F;
  task.back_off = 1.0F;
  return task;
}

void add_rate(const std::vector<Ran>& ran, const Table& table, const Measuring& measuring, Json& result) {
  result["examples_per_second"] = sum_of_rates(ran) * double(measuring.batch);
  result["examples"] = sum_of_rounds(ran) * measuring.batch;
  result["examples_per_second_of_worker"] = Json::array();
  for (const Ran& one : ran) result["examples_per_second_of_worker"].push_back(one.rate() * double(measuring.batch));
  if (const auto staleness = table.staleness())
    result["staleness"] = {{"mean", number(staleness->mean)}, {"p99", staleness->p99}, {"max", staleness->max}};
}

// Every row that an example touches has 1 added to each of its elements.
void add_lost(const std::vector<Ran>& ran, const Task& task, const Table& table, Json& result) {
  const std::vector<float> values = table.values();
  const double found = std::accumulate(values.begin(), values.end(), 0.0);
  double expected = 0.0;
  for (std::size_t worker = 0; worker < ran.size(); ++worker) {
    train::SparseStream stream(task.data, {}, task.seed, static_cast<unsigned>(worker));
    std::uint64_t touched = 0;
    for (std::uint64_t example = 0; example < ran[worker].rounds * task.batch; ++example)
      touched += stream.next().ids.size();
    expected += double(touched);
  }
  const double width = double(task.make_model()->table().shape[1]);
  result["row_updates"] = expected;
  result["lost_row_updates"] = expected - found / width;
  result["lost_per_million"] = expected > 0 ? 1e6 * (expected - found / width) / expected : 0.0;
}

Span timed(double seconds) { return {.seconds = seconds, .most = kMaxCounted}; }

// All workers together visit as many examples as there are in an epoch.
Json losses(const Configuration& configuration, const Measuring& measuring, const train::SparseData& data) {
  const Task task = task_of(configuration, measuring, data);
  const std::unique_ptr<Table> table = make_table(configuration.scheme, configuration.workers, task, measuring.stripes);
  const auto model = task.make_model();
  const std::uint64_t of_worker = data.info().examples / measuring.batch / std::uint64_t(configuration.workers);
  const std::uint64_t rounds = std::max<std::uint64_t>(1, of_worker);
  Json curve = Json::array();
  double seconds = 0.0, slowest = 0.0;
  std::vector<float> values(model->table().shape[0] * model->table().shape[1]);
  model->initialize(measuring.seed, 0, values);
  for (std::uint64_t epoch = 0; epoch <= measuring.epochs; ++epoch) {
    if (epoch > 0) {
      const auto ran = table->run({.seconds = 0, .least = rounds, .most = rounds}, epoch - 1);
      for (const Ran& one : ran) slowest = std::max(slowest, one.seconds);
      seconds += std::exchange(slowest, 0.0);
      values = table->values();
    }
    const train::SparseMetrics metrics = train::evaluate(*model, values, data.info().features, data, {});
    Json point = {{"epoch", epoch}, {"seconds", seconds}, {"loss", number(metrics.loss)}};
    if (metrics.accuracy) point["accuracy"] = *metrics.accuracy;
    if (metrics.rmse) point["rmse"] = number(*metrics.rmse);
    curve.push_back(point);
  }
  return curve;
}

}  // namespace

Json measure(const Configuration& configuration, const Measuring& measuring, const train::SparseData& data) {
  Json result = {{"scheme", to_string(configuration.scheme)},
                 {"workers", configuration.workers},
                 {"combine", configuration.combine}};
  const bool has_model = measuring.model != "rows";
  const auto make = [&](const Task& task) {
    return make_table(configuration.scheme, configuration.workers, task, measuring.stripes);
  };
  if (has_model) {
    const Task task = task_of(configuration, measuring, data);
    const auto table = make(task);
    add_rate(table->run(timed(measuring.seconds), 0), *table, measuring, result);
  }
  const Task counting = counting_task(configuration, measuring, data);
  const auto counts = make(counting);
  Span span = timed(measuring.seconds);
  span.most = std::max<std::uint64_t>(1, kMaxCounted / measuring.batch / std::uint64_t(configuration.workers));
  const auto counted = counts->run(span, 0);
  if (!has_model) add_rate(counted, *counts, measuring, result);
  add_lost(counted, counting, *counts, result);
  if (has_model && measuring.epochs > 0) result["curve"] = losses(configuration, measuring, data);
  return result;
}

}  // namespace ps_shm::bench
