// Processes of a test: a forked child that never outlives its object, and a pipe for waiting for one another.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <utility>

namespace ps_shm::test {

inline constexpr int kPatienceMs = 600'000;  // only ends what hangs: a busy machine is many times slower

// tell() wakes one hear(); created before the fork, used on both sides.
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
  // False: no tell() within the test's time limit.
  [[nodiscard]] bool hear() const {
    pollfd end{ends_[0], POLLIN, 0};
    char byte;
    return poll(&end, 1, kPatienceMs) == 1 && read(ends_[0], &byte, 1) == 1;
  }

 private:
  int ends_[2];
};

// A counter in memory that a test shares with its children: they increment it, and the test acts at a given count.
class SharedCount {
 public:
  SharedCount() {
    void* memory = mmap(nullptr, sizeof(Count), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    count_ = new (memory) Count{0};
  }
  ~SharedCount() { munmap(count_, sizeof(Count)); }
  SharedCount(const SharedCount&) = delete;
  SharedCount& operator=(const SharedCount&) = delete;

  void raise() const noexcept { ++*count_; }
  std::uint64_t get() const noexcept { return *count_; }

 private:
  using Count = std::atomic<std::uint64_t>;
  Count* count_;
};

// A forked copy of this process that runs `body` and exits with its result; 99: it threw.
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
  // Returns once the process is stopped; it stays so until SIGCONT.
  void stop() const {
    int status = 0;
    if (::kill(pid_, SIGSTOP) != 0 || waitpid(pid_, &status, WUNTRACED) != pid_ || !WIFSTOPPED(status))
      throw std::runtime_error("cannot stop a child");
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    join();
  }

 private:
  pid_t pid_;
};

// Waits until a signal ends the process.
[[noreturn]] inline void sleep_forever() {
  for (;;) pause();
}

// Whether `fact` becomes true within the test's time limit.
template <class Fact>
bool eventually(Fact&& fact) {
  for (int waited = 0; waited < kPatienceMs; ++waited) {
    if (fact()) return true;
    usleep(1000);
  }
  return false;
}

}  // namespace ps_shm::test
