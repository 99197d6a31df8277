// Metrics of jobs for Prometheus, with names and units that follow its conventions.
#include <civetweb.h>
#include <fmt/format.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <csignal>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/value_statistics.hpp"
#include "inspect_shm/bridge.hpp"
#include "inspect_shm/inspect.hpp"
#include "inspect_shm/jobs.hpp"
#include "inspect_shm/publications.hpp"
#include "inspection/figures.hpp"
#include "inspection/tables.hpp"
#include "inspection/texts.hpp"
#include "persistence/tensor_files.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "shm/segment/names.hpp"

namespace ps_shm::inspect {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<std::pair<const char*, std::string>>;

// Families in the order of their first use.
class Families {
 public:
  void gauge(const char* name, const char* help, const Labels& labels, double value) {
    add(name, help, MetricType::Gauge, labels).gauge.value = value;
  }
  void counter(const char* name, const char* help, const Labels& labels, double value) {
    add(name, help, MetricType::Counter, labels).counter.value = value;
  }
  // The figures that have a metric and a value; of a list, its length.
  template <class Record>
  void figures(const Record& record, const Labels& labels) {
    inspection::for_each_figure<Record>([&](const auto& figure) {
      const char* name = figure.shown.metric;
      if (name == nullptr) return;
      const std::optional<double> value = number_of(std::invoke(figure.read, record));
      if (value && std::string_view(name).ends_with("_total"))
        counter(name, figure.help, labels, *value);
      else if (value)
        gauge(name, figure.help, labels, *value);
    });
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
  template <class Value>
  static std::optional<double> number_of(const Value& value) {
    if constexpr (std::is_arithmetic_v<Value>) return double(value);
    return std::nullopt;
  }
  template <class Value>
  static std::optional<double> number_of(const std::optional<Value>& value) {
    return value ? number_of(*value) : std::nullopt;
  }
  template <class Value>
  static std::optional<double> number_of(const std::vector<Value>& list) {
    return double(list.size());
  }

  std::vector<MetricFamily> families_;
  std::map<std::string, std::size_t> places_;
};

void add_bytes(Families& out, const std::string& job, const ByteCount& bytes) {
  inspection::for_each_figure<ByteCount>([&](const auto& figure) {
    out.gauge("ps_shm_job_bytes", "Shared memory of the job, by use.", {{"job", job}, {"part", figure.name}},
              double(bytes.*figure.read));
  });
}

void add_workers(Families& out, const std::string& job, const JobView& view) {
  std::map<WorkerState, int> states = {{WorkerState::kAlive, 0}, {WorkerState::kDead, 0}, {WorkerState::kLeft, 0}};
  for (const WorkerInfo& worker : view.workers()) {
    ++states[worker.state];
    const Labels of = {{"job", job}, {"rank", fmt::to_string(worker.rank)}};
    out.figures(worker, of);
    out.gauge("ps_shm_worker_forgotten",
              "1 if more than 90 % of the worker's gradients were dropped: if it has data of its own, the model lacks "
              "what only it has seen.",
              of, forgotten_text(worker.rank, worker.steps, worker.dropped).empty() ? 0 : 1);
    out.gauge("ps_shm_worker_waiting", "1 if the worker waits for others.", of, worker.waiting_for.empty() ? 0 : 1);
  }
  for (const auto& [state, count] : states)
    out.gauge("ps_shm_workers", "Number of workers, by state.", {{"job", job}, {"state", to_string(state)}}, count);
}

void add_staleness(Families& out, const std::string& job, const JobView& view) {
  // From 64 on, a count is for numbers up to twice its minimum: the bounds lie between them.
  constexpr std::uint64_t kBounds[] = {0, 1, 2, 4, 8, 16, 32, 63, 127, 255, 1023, 4095, 65535};
  const std::vector<StalenessCount> counts = view.staleness_counts();
  std::uint64_t all = 0;
  for (const StalenessCount& one : counts) all += one.count;
  ClientMetric& metric =
      out.add("ps_shm_staleness_updates", "Updates by other workers between a worker's pull and push, per chunk.",
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

constexpr std::uint64_t kLookedAt = 1 << 16;  // values of a variable or a table

void add_variables(Families& out, const std::string& job, const JobView& view, bool has_values) {
  for (const VariableInfo& variable : view.variables()) {
    const Labels of = {{"job", job}, {"variable", variable.name}};
    out.figures(variable, of);
    if (!has_values || !variable.initialised) continue;
    const ValueStatistics found = statistics_of(view, variable, kLookedAt);
    out.gauge("ps_shm_variable_norm", "Euclidean norm of the finite values, estimated for large variables.", of,
              found.norm);
    out.gauge("ps_shm_variable_nonfinite_ratio", "Fraction of values that are NaN or infinite.", of,
              double(found.nans + found.infinites) / double(found.sampled));
  }
}

void add_tables(Families& out, const std::string& job, const JobView& view, bool has_values) {
  for (const TableInfo& table : view.tables()) {
    const Labels of = {{"job", job}, {"table", table.spec.name}};
    out.figures(table.statistics, of);
    if (!has_values) continue;
    const OddRows found = TableReader(job, table.spec.name).odd_rows(kLookedAt);
    out.gauge("ps_shm_table_rows_read", "Rows whose values were read, which are a sample of a large table.", of,
              double(found.sampled));
    out.gauge("ps_shm_table_rows_nonfinite", "Those of them that contain NaN or infinities.", of, double(found.odd));
  }
}

void add_bridge(Families& out, const std::string& job, std::uint64_t instance) {
  const std::optional<BridgeInfo> bridge = bridge_of(job, instance);
  if (!bridge || !bridge->error.empty()) return;
  out.figures(*bridge, {{"job", job}});
  for (const BridgeTable& table : bridge->tables)
    if (table.name) out.figures(table, {{"job", job}, {"table", *table.name}});
}

void add_job(Families& out, const std::string& job, bool has_values) {
  const JobView view(job);
  const JobInfo info = view.info();
  const Labels of = {{"job", job}};
  out.gauge("ps_shm_job_info", "Description of the job; always 1.",
            {{"job", job}, {"mode", to_string(info.live.mode)}, {"optimizer", to_string(info.config.optimizer.rule)}},
            1);
  out.counter("ps_shm_global_steps_total", "Global steps completed.", of, double(info.global_step));
  out.gauge("ps_shm_job_created_timestamp_seconds", "When the job was created, in Unix time.", of,
            double(info.created_unix_ns) * 1e-9);
  out.gauge("ps_shm_learning_rate", "Learning rate of the next step.", of,
            double(info.config.optimizer.schedule.rate(info.live.lr, info.global_step)));
  out.counter("ps_shm_snapshots_total", "Snapshots taken.", of, double(info.snapshots));
  add_bytes(out, job, info.bytes);
  add_workers(out, job, view);
  add_staleness(out, job, view);
  add_variables(out, job, view, has_values);
  add_tables(out, job, view, has_values);
  add_bridge(out, job, info.instance);
}

std::vector<MetricFamily> collect(const MetricsRequest& request) {
  Families out;
  out.gauge("ps_shm_filesystem_size_bytes", "Size of /dev/shm.", {}, double(shm::shm_capacity_bytes()));
  out.gauge("ps_shm_filesystem_free_bytes", "Free bytes of /dev/shm.", {}, double(shm::shm_free_bytes()));
  const Json listed = list_jobs();
  for (const Json& row : listed["jobs"]) {
    const std::string job = row["job"];
    if (!request.job.empty() && job != request.job) continue;
    out.gauge("ps_shm_job_state", "1 for the job's current state.", {{"job", job}, {"state", row["state"]}}, 1);
  }
  for (const Json& row : listed["jobs"]) {
    const std::string job = row["job"];
    if (row["global_step"].is_null() || (!request.job.empty() && job != request.job)) continue;
    try {
      add_job(out, job, request.has_values);
    } catch (const Error&) {
      // Gone or damaged since; the next scrape reports its state.
    }
  }
  if (!request.job.empty()) return out.take();
  for (const PublicationInfo& publication : find_publications(""))
    if (publication.generation) out.figures(publication, {{"publication", publication.name}});
  return out.take();
}

// OpenMetrics: a counter's family has no _total, bounds are floats, and there is an end marker.
std::string as_openmetrics(const std::string& text) {
  constexpr std::string_view kSuffix = "_total", kBound = "le=\"";
  std::istringstream lines(text);
  std::string changed;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# HELP ") || line.starts_with("# TYPE ")) {
      const std::size_t end = line.find(' ', std::string_view("# HELP ").size());
      if (end != line.npos && std::string_view(line).substr(0, end).ends_with(kSuffix))
        line.erase(end - kSuffix.size(), kSuffix.size());
    } else if (const std::size_t begin = line.find(kBound); begin != line.npos) {
      const std::size_t end = line.find('"', begin + kBound.size());
      const std::size_t digits = line.find_first_not_of("0123456789", begin + kBound.size());
      if (digits == end) line.insert(end, ".0");
    }
    changed += line + "\n";
  }
  return changed + "# EOF\n";
}

// Answers a request for /metrics.
int answer(mg_connection* connection, void* data) {
  const std::string method = mg_get_request_info(connection)->request_method;
  if (method != "GET" && method != "HEAD") {
    constexpr char kRefused[] =
        "HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    mg_write(connection, kRefused, sizeof kRefused - 1);
    return 405;
  }
  try {
    const std::string body = prometheus::TextSerializer().Serialize(collect(*static_cast<const MetricsRequest*>(data)));
    const std::string head = fmt::format(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.size());
    mg_write(connection, head.data(), head.size());
    if (method == "GET") mg_write(connection, body.data(), body.size());
    return 200;
  } catch (const std::exception&) {  // out of memory or descriptors at the moment
    mg_send_http_error(connection, 503, "%s", "out of memory or descriptors; try again");
    return 503;
  }
}

}  // namespace

Json gather_metrics(const MetricsRequest& request) {
  if (!request.job.empty()) static_cast<void>(JobView(request.job));  // throws an Error with the reason
  std::string text = prometheus::TextSerializer().Serialize(collect(request));
  if (request.is_openmetrics) text = as_openmetrics(text);
  if (!request.textfile.empty()) persistence::write_text(request.textfile, text);
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
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // before any thread is created, so that none of them receives a signal
  const bool is_ipv6 = address.find(':') != std::string::npos;
  if (is_ipv6 && mg_check_feature(MG_FEATURES_IPV6) == 0)
    throw Error(
        fmt::format("cannot listen on [{}]: the library civetweb of this machine has no IPv6; give an IPv4 address "
                    "with --address",
                    address),
        ErrorCode::kSystem);
  const std::string host = is_ipv6 ? fmt::format("[{}]", address) : address;
  const std::string place = fmt::format("{}:{}", host, port);
  // Several threads, and none waits for long: a client that sends nothing holds up no scrape.
  const char* options[] = {"listening_ports", place.c_str(), "num_threads", "8", "request_timeout_ms", "2000", nullptr};
  MetricsRequest asked = request;  // outlives the server's threads
  const std::unique_ptr<mg_context, decltype(&mg_stop)> server(mg_start(nullptr, nullptr, options), mg_stop);
  if (!server)
    throw Error(
        fmt::format("cannot listen on {}: the port is in use, or no interface has that address; choose others with "
                    "--port and --address",
                    place),
        ErrorCode::kSystem);
  mg_set_request_handler(server.get(), "/metrics", answer, &asked);
  mg_server_port bound = {};
  mg_get_server_ports(server.get(), 1, &bound);
  begun(fmt::format("http://{}:{}/metrics", host, bound.port));
  int received = 0;
  sigwait(&ends, &received);
}

}  // namespace ps_shm::inspect
