// Processes of a test: a forked child that never outlives its object, and a pipe to wait for one another.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <utility>

namespace ps::test {

inline constexpr int kPatienceMs = 20'000;

// tell() wakes one hear(); made before the fork, used on both sides.
class Bell {
 public:
  Bell() {
    if (pipe(ends_) != 0) throw std::runtime_error("pipe");
  }
  ~Bell() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  void tell() const { (void)!write(ends_[1], "", 1); }
  // False: nobody has told within the patience of a test.
  [[nodiscard]] bool hear() const {
    pollfd end{ends_[0], POLLIN, 0};
    char byte;
    return poll(&end, 1, kPatienceMs) == 1 && read(ends_[0], &byte, 1) == 1;
  }

 private:
  int ends_[2];
};

// A forked copy of this process that runs `body` and exits with what it returns; 99: it threw.
class Child {
 public:
  template <class Body>
  explicit Child(Body&& body) : pid_(fork()) {
    if (pid_ != 0) return;
    int code = 99;
    try {
      code = body();
    } catch (...) {
    }
    _exit(code);
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const noexcept { return pid_; }

  // Its exit code; -1: a signal ended it.
  int join() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    join();
  }

 private:
  pid_t pid_;
};

// Until a signal ends the process.
[[noreturn]] inline void sleep_forever() {
  for (;;) pause();
}

// Whether `fact` becomes true within the patience of a test.
template <class Fact>
bool eventually(Fact&& fact) {
  for (int waited = 0; waited < kPatienceMs; ++waited) {
    if (fact()) return true;
    usleep(1000);
  }
  return false;
}

}  // namespace ps::test
