// Slows a worker down on purpose, to measure the cost of stragglers: a time per step, or a multiple of its own work.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>

namespace ps_shm::train {

// `5ms`, `10x`, or either in a fraction of the steps: `10x@0.1`.
struct Delay {
  double seconds = 0.0;  // in every delayed step,
  double factor = 1.0;   // and this multiple of the time that its work took
  double share = 1.0;    // fraction of the steps, drawn at random

  bool is_none() const { return seconds <= 0 && factor <= 1; }
  std::string to_string() const;  // as on a command line

  bool operator==(const Delay&) const = default;
};

// Processor time of this thread: time lost to other processes on a busy machine is not included, so not multiplied.
double thread_seconds();

// One worker's delays. Used by one thread.
class Straggler {
 public:
  // The same seed and rank delay the same steps. `clock` returns seconds and runs while work is done.
  Straggler(const Delay& delay, std::uint64_t seed, std::uint32_t rank, std::function<double()> clock = thread_seconds);

  bool is_one() const { return !delay_.is_none(); }

  // A step's work begins: the clock counts from here on.
  void begin_work();

  // The work is done: waits for the delay of this step. Returns early, with false, once `stop` returns true.
  bool slow_down(const std::function<bool()>& stop);

  // How long to wait after `work_seconds` of work. Sleeping takes longer than requested, which later waits make up for:
  // given the duration of the last one, they are right on average.
  double wait_after(double work_seconds);
  void waited(double seconds);

 private:
  Delay delay_;
  std::function<double()> clock_;
  std::mt19937_64 generator_;
  double work_began_ = 0.0;
  double owed_ = 0.0;  // seconds; below 0: waited too long
  double last_ = 0.0;  // the delay of the last slow step
};

// Waits; returns early, with false, once `stop` returns true.
bool wait_seconds(double seconds, const std::function<bool()>& stop);

}  // namespace ps_shm::train
