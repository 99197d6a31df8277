// What every training loop records: steps, examples, times and phases; and the hooks that it calls.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hooks/nan_guard.hpp"
#include "ps_shm/checkpoint.hpp"

#include "train/log/span_log.hpp"
#include "train/log/step_observer.hpp"

namespace ps_shm::train {

// The state of a worker; rates are since the previous status.
struct TrainStatus {
  std::uint64_t steps = 0, global_steps = 0, examples = 0;
  double loss = 0.0;  // of the last batch
  double examples_per_second = 0.0, seconds_per_batch = 0.0;
};

// The state of a variable in a run without a ps: its values, or one of its optimizer slots.
struct LocalArray {
  std::string variable, slot;  // slot empty: the values
  std::vector<std::uint64_t> shape;
  std::vector<float> numbers;
};

// The complete state, between two steps.
struct LocalState {
  std::uint64_t step = 0, examples = 0;
  std::vector<LocalArray> arrays;
};

// The hooks of a loop: whether to continue, and reports.
struct TrainHooks {
  std::function<bool()> stop_requested;
  std::function<void(const TrainStatus&)> report;  // after one second, then every two, and at the end
  std::function<void(const std::string&)> warn;
  OnNan on_nan = OnNan::kStop;
  std::string restore_dir;  // for kRestore: the job's checkpoints
  // May replace a parameter's initial values, which are the model's otherwise.
  std::function<void(const std::string& name, std::span<float> values)> first_values;
  StepObserver* observer = nullptr;  // outlives the loop
  SpanLog* trace = nullptr;          // the same

  // Without a ps: the checkpoint to resume from, with all of the model's variables; none: from initial values.
  const Checkpoint* checkpoint = nullptr;
  // The same: called after each step, and once more after the last one; copy() returns the state.
  std::function<void(std::uint64_t step, double loss, bool is_last, const std::function<LocalState()>& copy)> keep;

  std::uint64_t first_step() const { return checkpoint != nullptr ? checkpoint->global_step() : 0; }
  std::uint64_t examples_before() const {
    std::uint64_t all = 0;  // one has all that several have been through
    if (checkpoint != nullptr)
      for (const std::uint64_t of_rank : checkpoint->examples()) all += of_rank;
    return all;
  }

  // The checkpoint's values of a variable, or of one of its slots; false: it has none, and `out` is unchanged.
  bool read_checkpoint(const std::string& variable, const std::string& slot, std::span<float> out) const;

  // For a worker or standalone training; reports by `warn`.
  hooks::NanGuard nan_guard(const std::string& who, Worker* worker) const;

  // The model's initial values have just been filled in.
  void replace_first(const std::string& name, std::span<float> values) const {
    if (first_values) first_values(name, values);
  }

  bool is_observed(std::uint64_t step) const { return observer != nullptr && observer->wants(step); }
};

// Where the time of the loop went. For a worker with a GPU: processor time, including its waits for the GPU.
struct PhaseSeconds {
  double pull = 0.0, gradient = 0.0;  // gradient: including local steps
  double delay = 0.0;                 // requested delays
  double push = 0.0;
  double step = 0.0;  // waiting for others; in sync mode also applying their gradients
};

struct TrainTotals {
  TrainStatus last;         // rates over the whole run
  double began_unix = 0.0;  // seconds
  double seconds = 0.0;     // of the loop, without the wait for the others to begin
  PhaseSeconds phases;      // for a worker of a job
  bool is_interrupted = false;
};

// Sums up the phases of a loop, and adds them to a trace if there is one.
class PhaseTimer {
 public:
  using Clock = std::chrono::steady_clock;

  explicit PhaseTimer(SpanLog* trace = nullptr) : trace_(trace) {}

  void begin() { last_ = Clock::now(); }
  void begin_step(std::uint64_t step) {
    begin();
    step_ = last_;
    if (trace_ != nullptr) trace_->begin_step(step);
  }
  void end(double& seconds, const char* name = nullptr) {
    const Clock::time_point now = Clock::now();
    seconds += std::chrono::duration<double>(now - last_).count();
    if (trace_ != nullptr && name != nullptr) trace_->add(name, ns(last_), ns(now));
    last_ = now;
  }
  void end_step() {
    if (trace_ != nullptr) trace_->add("step", ns(step_), ns(last_));
  }

  // As recorded in a trace.
  static std::uint64_t ns(Clock::time_point time) {
    return static_cast<std::uint64_t>(std::chrono::nanoseconds(time.time_since_epoch()).count());
  }

 private:
  SpanLog* trace_;
  Clock::time_point last_ = Clock::now(), step_ = last_;
};

// Counts steps, measures time, reports.
class TrainLog {
 public:
  using Clock = std::chrono::steady_clock;

  // `batch`: examples per step. Requires: the hooks outlive the log.
  TrainLog(const TrainHooks& hooks, std::size_t batch);

  bool is_stop_requested() const { return hooks_.stop_requested && hooks_.stop_requested(); }

  // Excludes time spent waiting for others to begin.
  void skip(Clock::duration waited) { began_ += waited, reported_ += waited; }

  void enter(double loss, std::uint64_t global_steps);
  void finish(TrainTotals& totals);

 private:
  TrainStatus since(Clock::time_point begin, const TrainStatus& before, Clock::time_point time) const;
  void report(const TrainStatus& status) const;

  const TrainHooks& hooks_;
  std::size_t batch_;
  Clock::time_point began_ = Clock::now(), reported_ = began_;
  TrainStatus now_, before_;
  bool has_reported_ = false;
};

}  // namespace ps_shm::train
