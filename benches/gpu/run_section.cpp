#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <string>

#include "sections.hpp"

namespace ps_shm::bench {
namespace {

using Clock = std::chrono::steady_clock;

volatile std::sig_atomic_t is_stopped = 0;

void write_all(int to, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = write(to, text.data() + done, text.size() - done);
    if (written <= 0) _exit(1);
    done += static_cast<std::size_t>(written);
  }
}

// The results of a section, each a line that begins with '+', or '=' if it is the last one.
constexpr char kMore = '+', kLast = '=';

struct Results {
  Json last = Json::object();
  bool is_complete = false;
};

// Reads until the other end closes. False: not within the time, or a signal came.
bool read_all(int from, Clock::time_point until, const SoFar& seen, Results& results) {
  std::string text;
  for (char part[4096];;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd end{from, POLLIN, 0};
    if (is_stopped != 0 || left <= 0 || poll(&end, 1, static_cast<int>(left)) <= 0) return false;
    const ssize_t got = read(from, part, sizeof part);
    if (got <= 0) return true;
    text.append(part, static_cast<std::size_t>(got));
    for (std::size_t length = 0; (length = text.find('\n')) != std::string::npos; text.erase(0, length + 1)) {
      results.is_complete = text.front() == kLast;
      results.last = Json::parse(text.begin() + 1, text.begin() + static_cast<std::ptrdiff_t>(length));
      if (seen) seen(results.last);
    }
  }
}

Json with_error(Json found, const std::string& error) {
  if (!found.is_object()) found = Json::object();
  found["error"] = error;
  return found;
}

// Ends the child, and with it those that it has started. A driver may hold it back for a while, but not for ever.
// Returns its status; -1: it is still there.
int end(pid_t child) {
  kill(child, SIGKILL);
  for (int waited = 0; waited < 2000; ++waited) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) return status;
    usleep(10'000);
  }
  return -1;
}

[[noreturn]] void be_section(const std::function<Json(const SoFar&)>& section, pid_t parent, int answer) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  Json found;
  const auto say = [&](char kind) { write_all(answer, kind + found.dump() + '\n'); };
  try {
    found = section([&](const Json& so_far) {
      found = so_far;
      say(kMore);
    });
  } catch (const std::exception& error) {
    found = with_error(found, error.what());
  }
  say(kLast);
  _exit(0);  // with whatever CUDA holds: its end is the kernel's business
}

}  // namespace

void end_sections_at_signals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { is_stopped = 1; };  // no SA_RESTART: poll comes back
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool was_stopped() noexcept { return is_stopped != 0; }

Json run_section(const std::function<Json(const SoFar&)>& section, double seconds, const SoFar& seen) {
  if (was_stopped()) return {{"error", "stopped by a signal"}};
  if (seconds <= 0) return {{"error", "no time was left for it"}};
  int ends[2];
  if (pipe(ends) != 0) return {{"error", std::string("no pipe: ") + std::strerror(errno)}};
  const pid_t parent = getpid(), child = fork();
  if (child == 0) {
    close(ends[0]);
    be_section(section, parent, ends[1]);
  }
  close(ends[1]);
  Results results;
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  const bool was_in_time = child > 0 && read_all(ends[0], until, seen, results);
  close(ends[0]);
  if (child < 0) return {{"error", "no process"}};
  const int status = end(child);
  if (results.is_complete) return results.last;
  if (was_stopped()) return with_error(results.last, "stopped by a signal");
  if (!was_in_time) return with_error(results.last, "took longer than " + std::to_string(int(seconds)) + " s");
  return with_error(results.last, WIFSIGNALED(status) ? "was killed by signal " + std::to_string(WTERMSIG(status))
                                                      : "ended before it had said everything");
}

}  // namespace ps_shm::bench
