// Progress: one live line on a terminal, plain lines every few seconds elsewhere; and the lines of a single worker.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "report/terminal.hpp"
#include "train/loop/trainer.hpp"

namespace ps_shm::report {

// "worker 0: after 1700 training steps (5021 global steps), loss on training batch is 0.2155 (161000 examples/s,
// 0.40 ms/batch)"
std::string worker_line(const std::string& who, const train::TrainStatus& status);

// The message of an interrupted worker: "worker 0: interrupted after 1700 training steps (5021 global steps)".
std::string interruption_line(const std::string& who, std::uint64_t steps, std::uint64_t global_steps);

struct JobProgress {
  std::uint64_t first_step = 0;  // at which the job began
  std::uint64_t steps = 0;
  std::uint64_t target_steps = 0;  // 0: unknown
  std::optional<double> loss = std::nullopt;
  std::optional<double> test_loss = std::nullopt;  // if the model is evaluated
  std::optional<double> mean_staleness = std::nullopt;  // none: no push may be stale
  std::uint32_t live_workers = 0, workers = 0;
};

// "step 5021/60000  8 %  34314 steps/s  loss 0.2155  staleness 1.9  3 of 3 workers  0:02 left". Each level of brevity,
// up to kMostBrevity, shortens it further; the step is always included.
inline constexpr int kMostBrevity = 7;
enum class Bar { kNone, kAscii, kUtf8 };  // "[###       ]", before the percentage
std::string progress_line(const JobProgress& now, double per_second, int brevity, Bar bar = Bar::kNone);

class Progress {
 public:
  explicit Progress(std::FILE* out);
  ~Progress() { clear(); }

  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Displays `now` if it is due; cheap otherwise.
  bool is_due() const;
  void show(const JobProgress& now);

  // Prints a line of its own; that of an error in red, if the terminal has colours.
  void print(const std::string& line);
  void print_error(const std::string& line);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  std::string fitting_line(const JobProgress& now);

  std::FILE* out_;
  bool is_terminal_, has_colour_;
  Bar bar_;
  bool has_line_ = false;
  Columns columns_;  // for which the last line was fitted
  int brevity_ = 0;  // of the last line
  Clock::time_point shown_ = Clock::now();
  double rate_ = 0.0;  // steps per second, smoothed
  std::optional<std::uint64_t> last_steps_;
};

}  // namespace ps_shm::report
