#include "inspect_shm/watch/watch.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <time.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "cli/output.hpp"
#include "inspect_shm/inspect.hpp"
#include "inspect_shm/watch/keys.hpp"
#include "inspect_shm/watch/pages.hpp"
#include "inspect_shm/watch/processes.hpp"
#include "inspect_shm/watch/sampler.hpp"
#include "inspect_shm/watch/screen.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::watch {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kLook = std::chrono::milliseconds(25);     // between polls of the workers' words
constexpr auto kSample = std::chrono::milliseconds(500);  // between two drawings
constexpr auto kLine = std::chrono::milliseconds(1000);   // between two plain lines

volatile sig_atomic_t g_signal = 0;
void note_signal(int signal) { g_signal = signal; }

std::string change(const std::string& job, const std::string& setting) {
  const inspect::Json changed = inspect::change_settings(job, "", {setting});
  std::string said;
  for (const auto& [key, values] : changed["changed"].items())
    said += fmt::format("{}: {} -> {}  ", key, values["before"].dump(), values["after"].dump());
  return said.empty() ? "it already had this value" : said;
}

int watch_in_lines(const std::string& job) {
  Sampler sampler(job);
  const Wanted wanted;
  for (Clock::time_point due = Clock::now();;) {
    const Model& model = sampler.sample(wanted);
    tools::write_out(plain_line(model));
    if (model.state == "removed" || model.state == "dead") return 0;
    for (due += kLine; Clock::now() < due;) {
      if (g_signal != 0) return 128 + g_signal;
      sampler.look(wanted);
      std::this_thread::sleep_for(kLook);
    }
  }
}

class Session {
 public:
  Session(const std::string& job, Screen screen)
      : job_(job), screen_(std::move(screen)), sampler_(job), keys_(view_, actions()) {
    view_.has_utf8 = screen_.has_utf8();
  }

  int run() {
    Clock::time_point due = Clock::now(), next_look = due;
    for (bool is_wanted = true; is_wanted;) {
      if (g_signal != 0) return 128 + g_signal;
      if (Clock::now() >= due) {
        if (!view_.is_paused) sample();
        due = Clock::now() + kSample;
        draw();
      }
      if (Clock::now() >= next_look) {  // evenly spaced, whatever keys are pressed: rates depend on it
        sampler_.look(wanted());
        next_look = Clock::now() + kLook;
      }
      const auto pause = std::min(next_look, due) - Clock::now();
      // Rounded up: otherwise the terminal would be polled repeatedly in the last millisecond.
      const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(pause).count();
      const KeyPress key = screen_.wait(std::max(0, static_cast<int>(milliseconds)));
      if (key.key == Key::kNone) continue;
      if (key.key == Key::kClosed) return 0;
      const auto page_before = std::pair(view_.page, keys_.chosen());
      is_wanted = keys_.press(key, model_, screenful_);
      if (page_before != std::pair(view_.page, keys_.chosen())) sample();  // data of that page has not been read
      draw();
    }
    return 0;
  }

 private:
  Actions actions() {
    return {.change =
                [this](const std::string& setting) {
                  std::string said = change(job_, setting);
                  sampler_.forget_settings();
                  return said;
                },
            .ask_to_end =
                [this](std::uint32_t rank) {
                  process_.emplace(sampler_.probe(), rank);
                  return fmt::format("end worker {} (process {}) of job {}", rank, process_->pid(), job_);
                },
            .end =
                [this](std::uint32_t rank, bool at_once) {
                  if (!process_) throw Error(fmt::format("worker {} is gone", rank));
                  process_->send(at_once ? SIGKILL : SIGTERM);
                  const std::uint32_t pid = process_->pid();
                  process_.reset();
                  return fmt::format("sent worker {} (process {}) {}", rank, pid, at_once ? "SIGKILL" : "SIGTERM");
                }};
  }

  Wanted wanted() const { return {view_.page, screenful_.shown, keys_.chosen()}; }

  void sample() {
    if (view_.page == Page::kVariables && screenful_.shown.empty()) {  // first visit: determine what is on it
      model_ = sampler_.sample(wanted());
      screenful_ = watch::draw(model_, view_, screen_.rows(), screen_.columns());
    }
    model_ = sampler_.sample(wanted());
  }

  void draw() {
    screen_.follow_size();
    screenful_ = watch::draw(model_, view_, screen_.rows(), screen_.columns());
    screen_.show(screenful_.lines);
  }

  std::string job_;
  Screen screen_;
  Sampler sampler_;
  ViewState view_;
  Keys keys_;
  Model model_;
  Screenful screenful_;
  std::optional<WorkerProcess> process_;
};

}  // namespace

int watch(const std::string& job) {
  static_cast<void>(JobView(job));  // reports its errors before the terminal changes
  std::optional<Screen> screen = Screen::try_open();
  struct sigaction ending = {};
  ending.sa_handler = note_signal;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &ending, nullptr);
  return screen ? Session(job, std::move(*screen)).run() : watch_in_lines(job);
}

}  // namespace ps_shm::watch
