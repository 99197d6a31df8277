#include "launch_shm/guard.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <vector>

#include "config/error_code.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::tools {
namespace {

constexpr pid_t kAllIsWell = 0;  // instead of a group: end nothing
constexpr int kLookMs = 20;
constexpr int kLooks = 250;  // 5 s from SIGTERM to SIGKILL, as in a launcher that is asked to end

// Groups that still have a process.
void keep_alive_ones(std::vector<pid_t>& groups) {
  groups.erase(std::remove_if(groups.begin(), groups.end(), [](pid_t one) { return kill(-one, 0) != 0; }),
               groups.end());
}

void end(std::vector<pid_t> groups) {
  for (const pid_t one : groups) kill(-one, SIGTERM);
  for (int look = 0; look < kLooks; ++look) {
    keep_alive_ones(groups);
    if (groups.empty()) return;
    poll(nullptr, 0, kLookMs);
  }
  for (const pid_t one : groups) kill(-one, SIGKILL);
}

[[noreturn]] void wait_for_end(int from_launcher) {
  prctl(PR_SET_NAME, "launch_guard");
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE})
    std::signal(number, SIG_IGN);  // the launcher gets them, too
  setsid();
  // Readers of the launcher's output must see its end.
  const int nothing = open("/dev/null", O_RDWR);
  for (const int one : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, one);
  std::vector<pid_t> groups;
  pid_t group = 0;
  for (;;) {
    const ssize_t count = read(from_launcher, &group, sizeof group);
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof group) break;
    if (group == kAllIsWell) _exit(0);
    groups.push_back(group);
  }
  end(groups);
  _exit(0);
}

}  // namespace

Guard::Guard() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw Error(fmt::format("cannot guard the started programs: {}", std::strerror(errno)), config::code_of(errno));
  pid_ = fork();
  if (pid_ < 0) {
    const int error = errno;
    close(ends[0]);
    close(ends[1]);
    throw Error(fmt::format("cannot guard the started programs: {}", std::strerror(error)), config::code_of(error));
  }
  if (pid_ == 0) {
    close(ends[1]);
    wait_for_end(ends[0]);
  }
  close(ends[0]);
  to_guard_ = ends[1];
}

Guard::~Guard() {
  watch(kAllIsWell);
  close(to_guard_);
  waitpid(pid_, nullptr, 0);
}

void Guard::watch(pid_t group) noexcept {
  // A pipe accepts so few bytes atomically. If the guard was killed, the launcher continues without it.
  while (write(to_guard_, &group, sizeof group) < 0 && errno == EINTR) {
  }
}

}  // namespace ps_shm::tools
