// What every training loop keeps: how many steps and examples, when they were, where the time went; and who is told.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace ps::train {

// Where a worker is; the rates are since the status before.
struct TrainStatus {
  std::uint64_t steps = 0, global_steps = 0, examples = 0;
  double loss = 0.0;  // of the last batch
  double examples_per_second = 0.0, seconds_per_batch = 0.0;
};

// Whom a loop asks whether to go on, and tells how it goes.
struct TrainHooks {
  std::function<bool()> stop_requested;
  std::function<void(const TrainStatus&)> report;  // after a second, then every two, and at the end
  std::function<void(const std::string&)> warn;
  // May replace a parameter's first values, which are the model's otherwise.
  std::function<void(const std::string& name, std::span<float> values)> first_values;

  // The model's have just been filled in.
  void replace_first(const std::string& name, std::span<float> values) const {
    if (first_values) first_values(name, values);
  }
};

// Where the time of the loop went. For a worker with a GPU: the processor's, its waits for the GPU included.
struct PhaseSeconds {
  double pull = 0.0, gradient = 0.0;  // gradient: and local steps
  double delay = 0.0;                 // that was asked for
  double push = 0.0;
  double step = 0.0;  // the wait for others; in sync mode also applying their gradients
};

struct TrainTotals {
  TrainStatus last;         // rates over the whole run
  double began_unix = 0.0;  // seconds
  double seconds = 0.0;     // of the loop, without the wait for the others to begin
  PhaseSeconds phases;      // of a worker of a job
  bool is_interrupted = false;
};

// Sums up what parts of a loop take.
class PhaseTimer {
 public:
  using Clock = std::chrono::steady_clock;

  void begin() { last_ = Clock::now(); }
  void end(double& seconds) {
    const Clock::time_point now = Clock::now();
    seconds += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  Clock::time_point last_ = Clock::now();
};

// Counts steps, keeps time, reports.
class TrainLog {
 public:
  using Clock = std::chrono::steady_clock;

  // `batch`: examples of a step. Requires: the hooks outlive the log.
  TrainLog(const TrainHooks& hooks, std::string who, std::size_t batch);

  bool is_stop_requested() const { return hooks_.stop_requested && hooks_.stop_requested(); }

  // What was waited for only because others had not begun yet is no training time.
  void skip(Clock::duration waited) { began_ += waited, reported_ += waited; }

  void enter(double loss, std::uint64_t global_steps);
  void finish(TrainTotals& totals);

 private:
  TrainStatus since(Clock::time_point begin, const TrainStatus& before, Clock::time_point time) const;
  void report(const TrainStatus& status) const;

  const TrainHooks& hooks_;
  std::string who_;
  std::size_t batch_;
  Clock::time_point began_ = Clock::now(), reported_ = began_;
  TrainStatus now_, before_;
  bool has_reported_ = false, has_warned_ = false;
};

}  // namespace ps::train
