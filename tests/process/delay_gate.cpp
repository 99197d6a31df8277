// A library that tests preload into the programs they start. It holds a worker in its --delay for as long as a test
// needs to observe the job, so that no job ends before the test has seen it.
//
// The environment variable DELAY_GATE names a file that holds a number. That many delays of each worker pass; the
// next one lasts until the number is raised, the file is removed, or the worker receives a signal. A worker therefore
// makes at least that many steps. With `--delay 4ms` it sleeps in at least every second step, so it makes at most twice
// that number plus two.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {

constexpr timespec kPoll{0, 2'000'000};

// The bytes of a file, truncated to the size of the buffer; negative if there is no such file.
template <std::size_t kSize>
ssize_t read_file(const char* path, char (&buffer)[kSize]) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return -1;
  const ssize_t count = read(file, buffer, kSize);
  close(file);
  return count;
}

bool is_training_worker() {
  constexpr char kOption[] = "--evaluate";  // arguments are followed by the 0 that separates them
  char arguments[16384];
  if (std::strcmp(program_invocation_short_name, "worker_shm") != 0) return false;
  const ssize_t count = read_file("/proc/self/cmdline", arguments);
  return count > 0 && memmem(arguments, static_cast<std::size_t>(count), kOption, sizeof kOption) == nullptr;
}

long allowed_delays(const char* gate) {
  char digits[32] = {};
  const ssize_t count = read_file(gate, digits);
  return count < 0 ? LONG_MAX : std::strtol(digits, nullptr, 10);
}

}  // namespace

// A worker calls this in its delays only: waiting for the ps uses nanosleep.
extern "C" int clock_nanosleep(clockid_t clock, int flags, const timespec* asked, timespec* left) {
  static const char* const gate = is_training_worker() ? std::getenv("DELAY_GATE") : nullptr;
  static thread_local long delays = 0;  // a process may have several workers, each in a thread
  if (gate != nullptr) {
    const long number = ++delays;
    while (number > allowed_delays(gate))
      if (syscall(SYS_nanosleep, &kPoll, nullptr) != 0)
        return EINTR;  // the worker checks next whether it was asked to stop
  }
  return syscall(SYS_clock_nanosleep, clock, flags, asked, left) == 0 ? 0 : errno;
}
