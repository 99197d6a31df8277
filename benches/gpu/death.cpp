// A process is killed while the copy engine writes to shared memory that it has registered: how long until it is gone,
// and until its pages are.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>

#include "on_gpu.hpp"
#include "shm/base/atomic.hpp"

namespace ps_shm::bench {
namespace {

double free_in_shm() {
  struct statvfs tmpfs = {};
  return statvfs("/dev/shm", &tmpfs) == 0 ? double(tmpfs.f_bavail) * double(tmpfs.f_frsize) : 0;
}

struct Progress {
  shm::AtomicShm<std::uint32_t> copies, has_failed;
};

// The victim: what it registers is its own, and nobody else has it mapped.
[[noreturn]] void copy_until_killed(std::size_t bytes, Progress& progress) {
  try {
    const SharedBytes memory(bytes);
    begin_gpu();
    const device::OwnStream stream(cuda());
    const Registered registered(memory.as<void>(), bytes);
    const device::DeviceMemory<std::byte> from(cuda(), bytes);
    for (std::uint32_t copies = 0;; ++copies) {
      // Two at a time, so that the engine always has one to do.
      check(cuda().copy(memory.as<void>(), from.on_device(), bytes, stream.get()), "copy");
      check(cuda().copy(memory.as<void>(), from.on_device(), bytes, stream.get()), "copy");
      progress.copies.store_release(copies);
      check(cuda().synchronize(stream.get()), "copy");
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "the copying process: %s\n", error.what());
    progress.has_failed.store_release(1);
  }
  _exit(1);
}

// Asks now and then, since what is waited for takes from milliseconds to seconds. None: not within so many seconds.
template <class Fact>
std::optional<double> seconds_until(double patience, Fact&& fact) {
  const double begin = now_seconds();
  for (;;) {
    const double now = now_seconds();
    if (fact()) return now - begin;
    if (now - begin > patience) return std::nullopt;
    usleep(500);
  }
}

Json number(const std::optional<double>& seconds) { return seconds ? Json(*seconds) : Json(); }

}  // namespace

Json death(const SectionOptions& options) {
  const std::size_t bytes = std::size_t{1} << (options.quick ? 26 : 30);
  const double patience = (options.quick ? 3 : 6) * options.patience;
  const double free_before = free_in_shm();
  if (free_before < 2 * double(bytes)) return {{"skipped", "/dev/shm has too little space"}};
  const SharedBytes memory(sizeof(Progress));
  Progress& progress = *memory.as<Progress>();
  const pid_t parent = getpid(), victim = fork();
  if (victim < 0) throw std::runtime_error("no process");
  if (victim == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    copy_until_killed(bytes, progress);
  }
  const auto has_begun = [&] { return progress.copies.load_acquire() >= 3 || progress.has_failed.load_acquire() != 0; };
  const bool began = seconds_until(patience, has_begun).has_value() && progress.has_failed.load_acquire() == 0;
  kill(victim, SIGKILL);
  const auto gone = seconds_until(patience, [&] { return waitpid(victim, nullptr, WNOHANG) == victim; });
  if (!began) throw std::runtime_error("the process that was to be killed did not copy");
  // Others may use /dev/shm meanwhile: nearly all of it has come back.
  const auto is_free = [&] { return free_in_shm() > free_before - 0.1 * double(bytes); };
  const auto freed = gone ? seconds_until(patience, is_free) : std::nullopt;
  Json found = {{"bytes", bytes},
                {"copies_before", progress.copies.load_acquire() * 2},
                {"gone_after_s", number(gone)},
                {"pages_free_after_s", freed ? Json(*gone + *freed) : Json()}};
  // And whether the GPU serves the next one.
  begin_gpu();
  const device::OwnStream stream(cuda());
  const Registered registered(memory.as<void>(), 4096);
  const device::DeviceMemory<std::byte> on_gpu(cuda(), 4096);
  check(cuda().copy(on_gpu.on_device(), memory.as<void>(), 4096, stream.get()), "copy");
  check(cuda().synchronize(stream.get()), "copy");
  found["next_process_copies"] = true;
  return found;
}

}  // namespace ps_shm::bench
