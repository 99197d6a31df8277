// Runs the same work in several real processes that start together, and measures each. Bounded: whoever fails or takes
// too long ends them all, and none outlives the benchmark.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "shm/base/atomic.hpp"

namespace ps_shm::bench {

// Memory that forked processes share: zeroed pages of /dev/shm, as a job's are, but without a name.
class SharedBytes {
 public:
  // Throws std::runtime_error where /dev/shm has no room.
  explicit SharedBytes(std::size_t bytes);
  ~SharedBytes();
  SharedBytes(const SharedBytes&) = delete;
  SharedBytes& operator=(const SharedBytes&) = delete;

  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }

 private:
  void* data_;
  std::size_t bytes_;
};

// Memory of this process alone, touched already and aligned to pages.
class PrivateFloats {
 public:
  explicit PrivateFloats(std::size_t count, float value = 0.0F);
  ~PrivateFloats();
  PrivateFloats(const PrivateFloats&) = delete;
  PrivateFloats& operator=(const PrivateFloats&) = delete;

  float* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return count_; }

 private:
  float* data_;
  std::size_t count_;
};

using shm::spin_pause;

// How long a measurement takes. All processes work at the same time until its end, so that rates can be summed.
struct Span {
  double seconds = 0.1;
  std::uint64_t batch = 1;  // rounds between two looks at the clock
  std::uint64_t least = 1;  // rounds, however long they take
  std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  bool in_step = false;  // every process does the same number of rounds: they wait for each other in each
};

// What one process does.
struct Work {
  std::function<void()> prepare = [] {};                      // not timed: first touch, caches
  std::function<std::uint64_t(std::uint64_t rounds)> rounds;  // does so many of them; returns what it had to repeat
};

struct Ran {
  double seconds = 0;
  std::uint64_t rounds = 0, retries = 0;
  double rate() const noexcept { return double(rounds) / seconds; }
};

// Forks `count` processes; each makes its work by make(number), prepares, waits for the others and does rounds. Throws
// std::runtime_error with what went wrong when one of them failed or took longer than the patience.
std::vector<Ran> run_processes(int count, const Span& span, const std::function<Work(int)>& make);

double sum_of_rates(const std::vector<Ran>& ran) noexcept;  // rounds per second
std::uint64_t sum_of_rounds(const std::vector<Ran>& ran) noexcept;
double retries_per_round(const std::vector<Ran>& ran) noexcept;

// A process beside those that are measured; killed when this object goes.
class Helper {
 public:
  explicit Helper(const std::function<void()>& body);
  ~Helper();
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;

 private:
  pid_t process_;
};

// Each process to a core of its own, as far as there are so many; otherwise wherever the kernel puts it (the default).
void pin_processes(bool pin) noexcept;
// How long one call of run_processes may take.
void set_patience(double seconds) noexcept;
// SIGINT and SIGTERM end what is being measured, with a std::runtime_error, so that jobs are removed.
void end_at_signals();

}  // namespace ps_shm::bench
