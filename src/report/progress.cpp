#include "report/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

namespace ps::report {
namespace {

constexpr double kTerminalSeconds = 0.2;
constexpr double kPlainSeconds = 3.0;
constexpr double kSmoothing = 0.3;  // on a terminal: the rate follows a change within about a second

std::string duration(double seconds) {
  const auto whole = static_cast<std::uint64_t>(seconds + 0.5);
  return whole < 3600 ? fmt::format("{}:{:02}", whole / 60, whole % 60)
                      : fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace

std::string worker_line(const std::string& who, const train::TrainStatus& status) {
  return fmt::format(
      "{}: after {} training steps ({} global steps), loss on training batch is {:.4f} ({:.0f} examples/s, {:.4f} "
      "s/batch)",
      who, status.steps, status.global_steps, status.loss, status.examples_per_second, status.seconds_per_batch);
}

Progress::Progress(std::FILE* out) : out_(out), is_terminal_(isatty(fileno(out)) != 0) {}

bool Progress::is_due() const {
  return std::chrono::duration<double>(Clock::now() - shown_).count() >=
         (is_terminal_ ? kTerminalSeconds : kPlainSeconds);
}

void Progress::show(const JobProgress& now) {
  const double seconds = std::chrono::duration<double>(Clock::now() - shown_).count();
  shown_ = Clock::now();
  if (last_steps_ && seconds > 0) {
    const double rate = double(now.steps - *last_steps_) / seconds;
    rate_ = is_terminal_ && rate_ > 0 ? rate_ + kSmoothing * (rate - rate_) : rate;
  } else if (!last_steps_ && seconds > 0) {
    rate_ = double(now.steps) / seconds;
  }
  last_steps_ = now.steps;

  std::string text = now.target_steps != 0 ? fmt::format("step {}/{}", now.steps, now.target_steps)
                                           : fmt::format("step {}", now.steps);
  text += fmt::format("  {:.0f} steps/s", rate_);
  if (now.loss) text += fmt::format("  loss {:.4f}", *now.loss);
  text += fmt::format("  staleness {:.1f}  {} of {} workers", now.mean_staleness, now.live_workers, now.workers);
  if (now.target_steps > now.steps && rate_ > 0)
    text += fmt::format("  {} left", duration(double(now.target_steps - now.steps) / rate_));
  if (is_terminal_) {
    std::fprintf(out_, "\r%s\x1b[K", text.c_str());
    has_line_ = true;
  } else {
    std::fprintf(out_, "%s\n", text.c_str());
  }
  std::fflush(out_);
}

void Progress::print(const std::string& line) {
  clear();
  std::fprintf(out_, "%s\n", line.c_str());
  std::fflush(out_);
}

void Progress::clear() {
  if (!has_line_) return;
  std::fputs("\r\x1b[K", out_);
  std::fflush(out_);
  has_line_ = false;
}

}  // namespace ps::report
