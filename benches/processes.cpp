#include "processes.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

namespace ps_shm::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxProcesses = 256;
bool is_pinned = false;
double patience_seconds = 120;
volatile std::sig_atomic_t was_interrupted = 0;

// What the processes of one run share beside their work.
struct Gate {
  std::atomic<int> waiting;
  std::atomic<bool> is_open;
  std::atomic<int> failures;              // processes that failed
  std::atomic<bool> has_message;          // of the one that failed first
  Clock::time_point begin;                // of the work, for all: when the last one was ready
  std::atomic<std::uint64_t> last_batch;  // in step: process 0 says which it is
  Ran ran[kMaxProcesses];
  char message[256];
};

std::runtime_error system_error(const std::string& what) {
  return std::runtime_error(what + ": " + std::strerror(errno));
}

// In a child that was just forked: it ends with its parent, at the latest.
void become_child(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

// To the number-th of the cores that this process may use, round and round.
void pin(int number) {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) throw system_error("sched_getaffinity");
  int skip = number % CPU_COUNT(&allowed), core = 0;
  while (!CPU_ISSET(core, &allowed) || skip-- > 0) ++core;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  if (sched_setaffinity(0, sizeof one, &one) != 0) throw system_error("sched_setaffinity");
}

void wait_for_others(Gate& gate, int count) {
  if (gate.waiting.fetch_add(1) + 1 == count) {
    gate.begin = Clock::now();
    gate.is_open.store(true);
  }
  for (int spin = 0; !gate.is_open.load(); ++spin) {
    if (gate.has_message.load()) _exit(1);
    if (spin > 1000) sched_yield();  // there may be more processes than cores
  }
}

void measure(const Work& work, const Span& span, Gate& gate, int number) {
  constexpr std::uint64_t kNotYet = std::numeric_limits<std::uint64_t>::max();
  Ran ran;
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - gate.begin).count(); };
  const auto has_time = [&] {
    return ran.rounds + span.batch <= span.most && (ran.rounds < span.least || elapsed() < span.seconds);
  };
  for (std::uint64_t batch = 0;; ++batch) {
    ran.retries += work.rounds(span.batch);
    ran.rounds += span.batch;
    if (!span.in_step) {
      if (!has_time()) break;
      continue;
    }
    // Nobody gets through the next batch without process 0, so all see its word before they could go further.
    const std::uint64_t last = gate.last_batch.load();
    if (batch >= last) break;
    if (number == 0 && last == kNotYet && !has_time()) gate.last_batch.store(batch + 1);
  }
  ran.seconds = elapsed();
  gate.ran[number] = ran;
}

[[noreturn]] void be_process(int number, int count, const Span& span, const std::function<Work(int)>& make,
                             Gate& gate) {
  int status = 0;
  try {
    if (is_pinned) pin(number);
    const Work work = make(number);
    work.prepare();
    wait_for_others(gate, count);
    measure(work, span, gate, number);
  } catch (const std::exception& error) {
    if (gate.failures.fetch_add(1) == 0) {
      std::snprintf(gate.message, sizeof gate.message, "%s", error.what());
      gate.has_message.store(true);
    }
    while (!gate.has_message.load()) sched_yield();  // at its end, whoever started them reads the message
    status = 1;
  }
  _exit(status);
}

// Kills and reaps what is left of the children.
struct Children {
  struct Child {
    pid_t process;
    int descriptor;
  };
  std::vector<Child> alive;

  ~Children() {
    for (const Child& child : alive) kill(child.process, SIGKILL);
    for (const Child& child : alive) {
      waitpid(child.process, nullptr, 0);
      close(child.descriptor);
    }
  }
  void add(pid_t process) {
    const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
    alive.push_back({process, descriptor});
    if (descriptor < 0) throw system_error("pidfd_open");
  }
  // Waits for the end of any; returns its status.
  int wait_for_one(Clock::time_point until) {
    std::vector<pollfd> polled;
    for (const Child& child : alive) polled.push_back({child.descriptor, POLLIN, 0});
    for (;;) {
      if (was_interrupted != 0) throw std::runtime_error("stopped by a signal");
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
      if (left <= 0) throw std::runtime_error("a process took too long");
      if (poll(polled.data(), polled.size(), static_cast<int>(left)) > 0) break;
    }
    const auto ended = std::find_if(polled.begin(), polled.end(), [](const pollfd& p) { return p.revents != 0; });
    const auto at = alive.begin() + (ended - polled.begin());
    int status = 0;
    waitpid(at->process, &status, 0);
    close(at->descriptor);
    alive.erase(at);
    return status;
  }
};

}  // namespace

SharedBytes::SharedBytes(std::size_t bytes) : bytes_(bytes) {
  const int descriptor = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor < 0) throw system_error("cannot make a file in /dev/shm");
  const int error = posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  data_ = error != 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  close(descriptor);
  if (data_ == MAP_FAILED) throw std::runtime_error("no room for " + std::to_string(bytes >> 20) + " MiB in /dev/shm");
}
SharedBytes::~SharedBytes() { munmap(data_, bytes_); }

PrivateFloats::PrivateFloats(std::size_t count, float value) : count_(count) {
  void* memory = mmap(nullptr, std::max<std::size_t>(1, count) * sizeof(float), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<float*>(memory);
  if (value != 0.0F) std::fill_n(data_, count, value);
}
PrivateFloats::~PrivateFloats() { munmap(data_, std::max<std::size_t>(1, count_) * sizeof(float)); }

std::vector<Ran> run_processes(int count, const Span& span, const std::function<Work(int)>& make) {
  if (was_interrupted != 0) throw std::runtime_error("stopped by a signal");
  if (count > kMaxProcesses) throw std::runtime_error("too many processes");
  const SharedBytes memory(sizeof(Gate));
  Gate& gate = *new (memory.as<void>()) Gate{};
  gate.last_batch.store(std::numeric_limits<std::uint64_t>::max());
  const auto until =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(patience_seconds));
  Children children;
  const pid_t parent = getpid();
  for (int number = 0; number < count; ++number) {
    const pid_t child = fork();
    if (child < 0) throw system_error("fork");
    if (child == 0) {
      become_child(parent);
      be_process(number, count, span, make, gate);
    }
    children.add(child);
  }
  while (!children.alive.empty()) {
    const int status = children.wait_for_one(until);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    if (WIFSIGNALED(status))
      throw std::runtime_error("a process was killed by signal " + std::to_string(WTERMSIG(status)));
    throw std::runtime_error(gate.message[0] != 0 ? gate.message : "a process failed");
  }
  return {gate.ran, gate.ran + count};
}

double sum_of_rates(const std::vector<Ran>& ran) noexcept {
  double sum = 0;
  for (const Ran& one : ran) sum += one.rate();
  return sum;
}

std::uint64_t sum_of_rounds(const std::vector<Ran>& ran) noexcept {
  std::uint64_t sum = 0;
  for (const Ran& one : ran) sum += one.rounds;
  return sum;
}

double retries_per_round(const std::vector<Ran>& ran) noexcept {
  std::uint64_t retries = 0;
  for (const Ran& one : ran) retries += one.retries;
  return double(retries) / double(std::max<std::uint64_t>(1, sum_of_rounds(ran)));
}

Helper::Helper(const std::function<void()>& body) {
  const pid_t parent = getpid();
  process_ = fork();
  if (process_ < 0) throw system_error("fork");
  if (process_ != 0) return;
  become_child(parent);
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "helper: %s\n", error.what());
    _exit(1);
  }
  _exit(0);
}

Helper::~Helper() {
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
}

void pin_processes(bool pin) noexcept { is_pinned = pin; }
void set_patience(double seconds) noexcept { patience_seconds = seconds; }

void end_at_signals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { was_interrupted = 1; };  // no SA_RESTART: poll comes back
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace ps_shm::bench
