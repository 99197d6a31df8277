#include "report/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace ps_shm::report {
namespace {

constexpr double kTerminalSeconds = 0.2;
constexpr double kPlainSeconds = 3.0;
constexpr std::size_t kBar = 10;
constexpr double kSmoothing = 0.3;  // on a terminal: the rate follows a change within about a second

std::string clock_time(double seconds) {
  const auto whole = static_cast<std::uint64_t>(seconds + 0.5);
  return whole < 3600 ? fmt::format("{}:{:02}", whole / 60, whole % 60)
                      : fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

// A part of the line. If space is short, all parts are abbreviated first, then omitted one by one, the least important
// one first.
struct Part {
  std::string full, brief;
  int most_brevity;  // the highest brevity at which it is shown
};

std::vector<Part> parts_of(const JobProgress& now, double per_second, Bar marks) {
  std::string step = fmt::format("step {}", now.steps);
  if (now.target_steps != 0) step += fmt::format("/{}", now.target_steps);
  std::vector<Part> parts = {{step, step, kMostBrevity}};
  if (now.target_steps != 0) {
    const double share = std::min(1.0, double(now.steps) / double(now.target_steps));
    if (marks != Bar::kNone) {
      const std::string filled = bar(share, kBar, marks == Bar::kUtf8);
      const std::string drawn = fmt::format("[{}{}]", filled, std::string(kBar - width_of(filled), ' '));
      parts.push_back({drawn, drawn, 2});
    }
    const std::string percent = fmt::format("{:.0f} %", std::floor(100 * share));
    parts.push_back({percent, percent, 5});
  }
  parts.push_back({rate(per_second, "steps"), rate(per_second, ""), 4});
  if (now.loss) parts.push_back({fmt::format("loss {:.4f}", *now.loss), fmt::format("loss {:.4f}", *now.loss), 5});
  if (now.test_loss)
    parts.push_back({fmt::format("test loss {:.4f}", *now.test_loss), fmt::format("test {:.4f}", *now.test_loss), 3});
  if (now.mean_staleness)
    parts.push_back(
        {fmt::format("staleness {:.1f}", *now.mean_staleness), fmt::format("stale {:.1f}", *now.mean_staleness), 1});
  parts.push_back({fmt::format("{} of {} workers", now.live_workers, now.workers),
                   fmt::format("{}/{} workers", now.live_workers, now.workers), 3});
  if (now.target_steps > now.steps && per_second > 0) {
    const std::string left = clock_time(double(now.target_steps - now.steps) / per_second) + " left";
    parts.push_back({left, left, kMostBrevity - 1});
  }
  return parts;
}

}  // namespace

std::string progress_line(const JobProgress& now, double per_second, int brevity, Bar bar) {
  std::string line;
  for (const Part& part : parts_of(now, per_second, bar)) {
    if (brevity > part.most_brevity) continue;
    line += (line.empty() ? "" : "  ") + (brevity == 0 ? part.full : part.brief);
  }
  return line;
}

std::string worker_line(const std::string& who, const train::TrainStatus& status) {
  return fmt::format("{}: after {} training steps ({} global steps), loss on training batch is {:.4f} ({}, {}/batch)",
                     who, status.steps, status.global_steps, status.loss, rate(status.examples_per_second, "examples"),
                     duration(status.seconds_per_batch));
}

std::string interruption_line(const std::string& who, std::uint64_t steps, std::uint64_t global_steps) {
  return fmt::format("{}: interrupted after {} training steps ({} global steps)", who, steps, global_steps);
}

Progress::Progress(std::FILE* out)
    : out_(out),
      is_terminal_(isatty(fileno(out)) != 0),
      has_colour_(has_colour(out)),
      bar_(!is_terminal_ ? Bar::kNone
           : has_utf8()  ? Bar::kUtf8
                         : Bar::kAscii) {}

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
    rate_ = double(now.steps - now.first_step) / seconds;
  }
  last_steps_ = now.steps;

  if (is_terminal_) {
    std::string line = fitting_line(now);
    const std::size_t begin = line.find('['), end = line.find(']');
    if (has_colour_ && begin != std::string::npos && end != std::string::npos)
      line.replace(begin + 1, end - begin - 1, coloured(Colour::kGreen, line.substr(begin + 1, end - begin - 1)));
    std::fprintf(out_, "\r%s\x1b[K", line.c_str());
    has_line_ = true;
  } else {
    std::fprintf(out_, "%s\n", progress_line(now, rate_, 0).c_str());
  }
  std::fflush(out_);
}

// Queries the width each time, since a terminal may be resized. A shortened line stays short until then,
// because it would flicker otherwise. The last column stays free: some terminals start another line after it.
std::string Progress::fitting_line(const JobProgress& now) {
  const Columns columns = columns_of(out_);
  if (columns != columns_) brevity_ = 0;
  columns_ = columns;
  const std::size_t room = columns.value_or(kUsualColumns) - 1;
  while (brevity_ < kMostBrevity && width_of(progress_line(now, rate_, brevity_, bar_)) > room) ++brevity_;
  return cut(progress_line(now, rate_, brevity_, bar_), room);
}

void Progress::print(const std::string& line) {
  clear();
  std::fprintf(out_, "%s\n", line.c_str());
  std::fflush(out_);
}

void Progress::print_error(const std::string& line) { print(has_colour_ ? coloured(Colour::kRed, line) : line); }

void Progress::clear() {
  if (!has_line_) return;
  std::fputs("\r\x1b[K", out_);
  std::fflush(out_);
  has_line_ = false;
}

}  // namespace ps_shm::report
