// The result of a run, as text and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/job_view.hpp"
#include "ps_shm/table_statistics.hpp"
#include "report/terminal.hpp"
#include "train/loop/trainer.hpp"
#include "train/models/sparse/sparse_model.hpp"

namespace ps_shm::report {

using Json = nlohmann::ordered_json;

// The mean of a worker's or a job's staleness, or "-" where nothing was measured.
std::string mean_text(const StalenessSummary& staleness);

struct WorkerReport {
  std::uint32_t rank = 0;
  std::uint64_t steps = 0, examples = 0;
  double began_unix = 0.0;     // seconds; 0: unknown
  double seconds = 0.0;        // of training
  std::optional<double> loss;  // of its last batch; none: it has not computed any
  StalenessSummary staleness;
  std::uint64_t retries = 0, dropped = 0;
  std::optional<train::PhaseSeconds> phases;
  Json gpu;  // of its GPU (gpu_summary.hpp); null: it has none

  WorkerReport() = default;
  explicit WorkerReport(const WorkerInfo& info);

  // For a rank with several owners, the first of whom began at `began` (Unix time): steps and time include all of them.
  void extend_to(double began);
};

using Metrics = train::SparseMetrics;  // dense models use the first two

// The metrics of a job's parameters at some moment of its training.
struct CurvePoint {
  double seconds = 0.0;  // since the first worker began
  std::uint64_t step = 0;
  std::optional<double> epoch;  // for sparse models
  Metrics metrics;              // on the test set
};

// What the last worker of a run with a table by key finds at its end.
struct KeyedResult {
  Metrics test;
  TableStatistics table;
};

struct CountedValues {
  double first = 0.0, min = 0.0, max = 0.0;

  CountedValues() = default;
  explicit CountedValues(std::span<const float> values);
};

struct RunReport {
  std::string job, mode, layout, adds, optimizer, model, data;  // empty: does not apply
  std::uint32_t workers = 1;
  std::uint64_t first_step = 0;  // at which it began: that of a checkpoint
  std::uint64_t steps = 0, examples = 0;
  double began_unix = 0.0;               // when the first worker began; 0: unknown
  double seconds = 0.0;                  // of training, from then until the last worker ended
  std::optional<double> loss;            // mean over the workers' last batches; none: no worker has computed any
  std::optional<Metrics> test;           // not for the model count
  bool is_test_of_training = false;      // no test data: `test` is on the training data
  std::optional<double> epochs;          // for sparse models
  std::optional<Metrics> average_test;   // with the parameters' moving averages
  std::optional<CountedValues> count;    // for the model count
  std::optional<TableStatistics> table;  // with a table by key; there is no digest then
  std::vector<CurvePoint> curve;
  std::vector<CurvePoint> evaluations;  // by an evaluator during training
  StalenessSummary staleness;
  std::vector<StalenessCount> staleness_counts;
  std::uint64_t dropped = 0, retries = 0;
  std::optional<std::uint64_t> max_clock_skew;  // clock skew; for modes with a bound of staleness
  std::uint64_t digest = 0;
  bool has_own_data = false;  // each worker may have data that no other one has
  std::vector<WorkerReport> per_worker;

  // Whether pushes may be stale: neither in sync mode nor in a single process.
  bool may_be_stale() const;

  // Settings of a job, with the number of workers at its start.
  static RunReport of_config(const JobConfig& config);

  // Settings, steps, workers and digest of a job; the caller fills in `seconds`, model, data, test and count.
  static RunReport of_job(const JobView& view);

  // The summary of training in one process. The caller fills in test and digest.
  static RunReport of_one(const train::TrainTotals& totals, const std::string& model, const std::string& data);

  // Aggregates per_worker: examples, loss, retries, dropped, and the times of those that know when they began.
  void sum_up();
};

// As used in a report.
Metrics metrics_of(const train::Metrics& metrics);
std::string to_text(const Metrics& metrics, const std::string& of);  // "test accuracy 0.9800, test loss 0.0700"

std::string to_text(const CountedValues& values);
Json to_json(const WorkerReport& worker, bool is_count);

// What a worker reports to the launcher before it leaves, in one line: the above, when it began (`began`), and what it
// found.
std::string worker_json(const Worker& worker, double began_unix, double seconds, bool is_count,
                        const std::optional<train::PhaseSeconds>& phases, const std::optional<train::GpuReport>& gpu,
                        const std::optional<KeyedResult>& keyed = std::nullopt);
std::optional<KeyedResult> read_keyed(const Json& of_worker);

// Reads from that line what the segments do not contain: when it began, how long it took, the phases, and its GPU.
void read_times(const Json& of_worker, WorkerReport& worker);

// A line printed by an evaluator, and its contents, with `seconds` in Unix time. None: it is another line.
std::string evaluation_json(std::uint64_t generation, std::uint64_t step, double unix_seconds, const Metrics& metrics);
std::optional<CurvePoint> read_evaluation(const Json& json);

Json to_json(const RunReport& run);
std::string to_text(const RunReport& run, Columns columns);  // fitted

}  // namespace ps_shm::report
