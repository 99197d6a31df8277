// What a Prometheus server scrapes of jobs: names and units as its conventions have them.
#include <fmt/format.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <csignal>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "inspect.hpp"
#include "inspect_jobs.hpp"
#include "keep/tensor_files.hpp"
#include "ps/errors.hpp"
#include "ps/job_view.hpp"
#include "shm/names.hpp"
#include "value_statistics.hpp"

namespace ps::inspect {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<std::pair<const char*, std::string>>;

// Families in the order in which they are first used.
class Families {
 public:
  void gauge(const char* name, const char* help, const Labels& labels, double value) {
    add(name, help, MetricType::Gauge, labels).gauge.value = value;
  }
  void counter(const char* name, const char* help, const Labels& labels, double value) {
    add(name, help, MetricType::Counter, labels).counter.value = value;
  }
  ClientMetric& add(const char* name, const char* help, MetricType type, const Labels& labels) {
    const auto [place, is_new] = places_.emplace(name, families_.size());
    if (is_new) families_.push_back({name, help, type, {}});
    ClientMetric& metric = families_[place->second].metric.emplace_back();
    for (const auto& [label, value] : labels) metric.label.push_back({label, value});
    return metric;
  }
  std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  std::vector<MetricFamily> families_;
  std::map<std::string, std::size_t> places_;
};

void add_bytes(Families& out, const std::string& job, const ByteCount& bytes) {
  const std::pair<const char*, std::uint64_t> parts[] = {
      {"control", bytes.control},           {"values", bytes.values},
      {"optimizer_slots", bytes.slots},     {"words", bytes.words},
      {"padding", bytes.padding},           {"spares", bytes.spares},
      {"accumulators", bytes.accumulators}, {"reserves", bytes.reserves},
      {"gradients", bytes.gradients},       {"shared_data", bytes.shared_data}};
  for (const auto& [part, count] : parts)
    out.gauge("ps_shm_job_bytes", "Shared memory of the job, by what it is for.", {{"job", job}, {"part", part}},
              double(count));
}

void add_workers(Families& out, const std::string& job, const JobView& view) {
  std::map<WorkerState, int> states = {{WorkerState::kAlive, 0}, {WorkerState::kDead, 0}, {WorkerState::kLeft, 0}};
  for (const WorkerInfo& worker : view.workers()) {
    ++states[worker.state];
    const Labels of = {{"job", job}, {"rank", fmt::to_string(worker.rank)}};
    const auto counter = [&](const char* name, const char* help, std::uint64_t value) {
      out.counter(name, help, of, double(value));
    };
    counter("ps_shm_worker_steps_total", "Steps of the worker's rank.", worker.steps);
    counter("ps_shm_worker_pushes_total", "Pushes of variables.", worker.pushes);
    counter("ps_shm_worker_pulls_total", "Pulls of variables.", worker.pulls);
    counter("ps_shm_worker_push_retries_total", "Chunks that were pushed again.", worker.push_retries);
    counter("ps_shm_worker_pull_retries_total", "Chunks that were pulled again.", worker.pull_retries);
    counter("ps_shm_worker_dropped_gradients_total", "Gradients that a quorum came too late for.", worker.dropped);
    counter("ps_shm_worker_examples_total", "Training examples.", worker.examples);
    if (worker.examples != 0)
      out.gauge("ps_shm_worker_training_loss", "Loss on the worker's last batch.", of, worker.loss);
    out.gauge("ps_shm_worker_waiting", "1 where the worker waits for others.", of, worker.waiting_for.empty() ? 0 : 1);
  }
  for (const auto& [state, count] : states)
    out.gauge("ps_shm_workers", "Workers, by state.", {{"job", job}, {"state", to_string(state)}}, count);
}

void add_staleness(Families& out, const std::string& job, const JobView& view) {
  // Counts from 64 on are of twice the least: bounds lie between them.
  constexpr std::uint64_t kBounds[] = {0, 1, 2, 4, 8, 16, 32, 63, 127, 255, 1023, 4095, 65535};
  const std::vector<StalenessCount> counts = view.staleness_counts();
  std::uint64_t all = 0;
  for (const StalenessCount& one : counts) all += one.count;
  ClientMetric& metric = out.add("ps_shm_staleness_updates",
                                 "Updates by others between a worker's pull and its push, of each chunk pushed.",
                                 MetricType::Histogram, {{"job", job}});
  metric.histogram.sample_count = all;
  metric.histogram.sample_sum = view.staleness().mean * double(all);
  for (const std::uint64_t bound : kBounds) {
    std::uint64_t up_to = 0;
    for (const StalenessCount& one : counts)
      if (one.least <= bound) up_to += one.count;
    metric.histogram.bucket.push_back({up_to, double(bound)});
  }
}

void add_variables(Families& out, const std::string& job, const JobView& view, bool has_values) {
  constexpr std::uint64_t kLookedAt = 1 << 16;
  for (const VariableInfo& variable : view.variables()) {
    const Labels of = {{"job", job}, {"variable", variable.name}};
    out.gauge("ps_shm_variable_bytes", "Values of the variable.", of, double(variable.bytes));
    out.counter("ps_shm_variable_updates_total", "Pushes to the variable.", of, double(variable.updates));
    if (!has_values || !variable.initialised) continue;
    const ValueStatistics found = statistics_of(view, variable, kLookedAt);
    out.gauge("ps_shm_variable_norm", "Euclidean norm of the finite values, estimated for large variables.", of,
              found.norm);
    out.gauge("ps_shm_variable_nonfinite_ratio", "Share of values that are NaN or infinite.", of,
              double(found.nans + found.infinites) / double(found.looked_at));
  }
}

void add_job(Families& out, const std::string& job, bool has_values) {
  const JobView view(job);
  const JobInfo info = view.info();
  const Labels of = {{"job", job}};
  out.gauge("ps_shm_job_info", "What the job is; always 1.",
            {{"job", job}, {"mode", to_string(info.live.mode)}, {"optimizer", to_string(info.config.optimizer.rule)}},
            1);
  out.counter("ps_shm_global_steps_total", "Global steps done.", of, double(info.global_step));
  out.gauge("ps_shm_job_created_timestamp_seconds", "When the job was created, in Unix time.", of,
            double(info.created_unix_ns) * 1e-9);
  out.gauge("ps_shm_learning_rate", "Learning rate of the next step.", of,
            double(info.config.optimizer.schedule.rate(info.live.learning_rate, info.global_step)));
  out.counter("ps_shm_snapshots_total", "Snapshots that were taken.", of, double(info.snapshots));
  add_bytes(out, job, info.bytes);
  add_workers(out, job, view);
  add_staleness(out, job, view);
  add_variables(out, job, view, has_values);
}

std::vector<MetricFamily> collect(const MetricsRequest& request) {
  Families out;
  out.gauge("ps_shm_filesystem_size_bytes", "Size of /dev/shm.", {}, double(shm::shm_capacity_bytes()));
  out.gauge("ps_shm_filesystem_free_bytes", "Free bytes of /dev/shm.", {}, double(shm::shm_free_bytes()));
  const Json listed = list_jobs();
  for (const Json& row : listed["jobs"]) {
    const std::string job = row["job"];
    if (!request.job.empty() && job != request.job) continue;
    out.gauge("ps_shm_job_state", "1 with the state that the job is in.", {{"job", job}, {"state", row["state"]}}, 1);
  }
  for (const Json& row : listed["jobs"]) {
    const std::string job = row["job"];
    if (row["global_step"].is_null() || (!request.job.empty() && job != request.job)) continue;
    try {
      add_job(out, job, request.has_values);
    } catch (const Error&) {
      // Gone or damaged since; the next scrape has its state.
    }
  }
  if (!request.job.empty()) return out.take();
  const Json publications = list_publications("");
  for (const Json& row : publications["publications"]) {
    if (row["generation"].is_null()) continue;
    const Labels of = {{"publication", row["publication"]}};
    out.counter("ps_shm_publication_generations_total", "Generations that were published.", of, row["generation"]);
    out.gauge("ps_shm_publication_subscribers", "Subscribers.", of, double(row["subscribers"].size()));
    out.counter("ps_shm_publication_written_bytes_total", "Bytes that the publisher wrote.", of, row["written_bytes"]);
  }
  return out.take();
}

// OpenMetrics calls a counter's family without _total, has bounds as floats, and an end.
std::string as_openmetrics(const std::string& text) {
  static const std::regex family(R"(^(# (?:HELP|TYPE) \w+)_total )"), bound("le=\"(\\d+)\"");
  std::istringstream lines(text);
  std::string changed;
  for (std::string line; std::getline(lines, line);)
    changed += std::regex_replace(std::regex_replace(line, family, "$1 "), bound, "le=\"$1.0\"") + "\n";
  return changed + "# EOF\n";
}

class Jobs : public prometheus::Collectable {
 public:
  explicit Jobs(MetricsRequest request) : request_(std::move(request)) {}
  std::vector<MetricFamily> Collect() const override {
    try {
      return collect(request_);
    } catch (const std::exception&) {  // of memory or descriptors there are none just now
      return {};
    }
  }

 private:
  MetricsRequest request_;
};

}  // namespace

Json gather_metrics(const MetricsRequest& request) {
  if (!request.job.empty()) static_cast<void>(JobView(request.job));  // throws: says why it can't be read
  std::string text = prometheus::TextSerializer().Serialize(collect(request));
  if (request.is_openmetrics) text = as_openmetrics(text);
  if (!request.textfile.empty()) keep::write_text(request.textfile, text);
  return {{"textfile", request.textfile.empty() ? Json() : Json(request.textfile)}, {"text", std::move(text)}};
}

std::string metrics_as_text(const Json& gathered, Columns) {
  return gathered["textfile"].is_null() ? gathered["text"].get<std::string>() : std::string();
}

void serve_metrics(const MetricsRequest& request, const std::string& address, std::uint16_t port,
                   const std::function<void(const std::string& url)>& begun) {
  sigset_t ends;
  sigemptyset(&ends);
  for (const int one : {SIGINT, SIGTERM}) sigaddset(&ends, one);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // before there are threads, so that none of them takes one
  std::unique_ptr<prometheus::Exposer> exposer;
  const bool is_ipv6 = address.find(':') != std::string::npos;
  const std::string host = is_ipv6 ? fmt::format("[{}]", address) : address;
  try {
    exposer = std::make_unique<prometheus::Exposer>(fmt::format("{}:{}", host, port), 1);
  } catch (const std::exception& error) {
    throw Error(fmt::format("cannot listen on {}:{}: {}; choose another port by --port", host, port, error.what()));
  }
  const auto jobs = std::make_shared<Jobs>(request);
  exposer->RegisterCollectable(jobs);
  begun(fmt::format("http://{}:{}/metrics", host, exposer->GetListeningPorts().at(0)));
  int received = 0;
  sigwait(&ends, &received);
}

}  // namespace ps::inspect
