// What a run has come to, for people and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ps/job_view.hpp"
#include "report/terminal.hpp"
#include "train/sparse/sparse_model.hpp"
#include "train/trainer.hpp"

namespace ps::report {

using Json = nlohmann::ordered_json;

struct WorkerReport {
  std::uint32_t rank = 0;
  std::uint64_t steps = 0, examples = 0;
  double began_unix = 0.0;     // seconds; 0: unknown
  double seconds = 0.0;        // of training
  std::optional<double> loss;  // of its last batch; none: it has had none
  StalenessSummary staleness;
  std::uint64_t retries = 0, dropped = 0;
  std::optional<train::PhaseSeconds> phases;
  Json gpu;  // what it says of its GPU (gpu_summary.hpp); null: it has none

  WorkerReport() = default;
  explicit WorkerReport(const WorkerInfo& info);

  // Of a rank that several have had, the first one from `began` (Unix time) on: it has steps of all, so its time is theirs.
  void extend_to(double began);
};

using Metrics = train::SparseMetrics;  // dense models have the first two

// What a job's parameters had come to at some moment of its training.
struct CurvePoint {
  double seconds = 0.0;  // since the first worker began
  std::uint64_t step = 0;
  std::optional<double> epoch;  // of sparse models
  Metrics metrics;              // on the test set
};

struct CountedValues {
  double first = 0.0, min = 0.0, max = 0.0;

  CountedValues() = default;
  explicit CountedValues(const std::vector<float>& values);
};

struct RunReport {
  std::string job, mode, layout, adds, optimizer, model, data;  // empty: does not apply
  std::uint32_t workers = 1;
  std::uint64_t first_step = 0;  // that it began with: of a checkpoint
  std::uint64_t steps = 0, examples = 0;
  double began_unix = 0.0;              // when the first worker began; 0: unknown
  double seconds = 0.0;                 // of training, from then to the last one's end
  std::optional<double> loss;           // the mean of the workers' last batches; none: nobody has had one
  std::optional<Metrics> test;          // of models
  bool is_test_of_training = false;     // nothing is held out: `test` is of the training data
  std::optional<double> epochs;         // of sparse models
  std::optional<Metrics> average_test;  // of the parameters' moving averages
  std::optional<CountedValues> count;   // of the model count
  std::vector<CurvePoint> curve;
  std::vector<CurvePoint> evaluations;  // by an evaluator, while others trained
  StalenessSummary staleness;
  std::vector<StalenessCount> staleness_counts;
  std::uint64_t dropped = 0, retries = 0;
  std::optional<std::uint64_t> lead_max;  // of modes with a bound of staleness
  std::uint64_t digest = 0;
  std::vector<WorkerReport> per_worker;

  // Settings, steps, workers and digest of a job; `seconds` is left to the caller, as are model, data, test and count.
  static RunReport of_job(const JobView& view);

  // The summary of training in one process. Test and digest are left to the caller.
  static RunReport of_one(const train::TrainTotals& totals, const std::string& model, const std::string& data);

  // Sums up per_worker: examples, loss, retries, dropped, and the times of those who know when they began.
  void sum_up();
};

// As a report has them.
Metrics metrics_of(const train::Metrics& metrics);
std::string to_text(const Metrics& metrics, const std::string& of);  // "test accuracy 0.9800, test loss 0.0700"

std::string to_text(const CountedValues& values);
Json to_json(const WorkerReport& worker, bool is_count);

// What a worker that has not left yet tells the launcher, in one line: the above, and when it began (`began`).
std::string worker_json(const Worker& worker, double began_unix, double seconds, bool is_count,
                        const std::optional<train::PhaseSeconds>& phases, const std::optional<train::GpuReport>& gpu);

// Reads of that what the segments do not know: when it began, how long it took, where the time went, and its GPU.
void read_times(const Json& of_worker, WorkerReport& worker);

// A line that an evaluator prints, and what it says; `seconds` is Unix time there. None: it is another line.
std::string evaluation_json(std::uint64_t generation, std::uint64_t step, double unix_seconds, const Metrics& metrics);
std::optional<CurvePoint> read_evaluation(const Json& json);

Json to_json(const RunReport& run);
std::string to_text(const RunReport& run, Columns columns);  // to fit

}  // namespace ps::report
