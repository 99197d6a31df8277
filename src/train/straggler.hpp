// What slows a worker down on purpose, to see what a straggler costs: a time per step, or a multiple of its own work.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>

namespace ps::train {

// `5ms`, `10x`, or either in a share of the steps: `10x@0.1`.
struct Delay {
  double seconds = 0.0;  // in every step that is slowed down,
  double factor = 1.0;   // and so many times as long as the work in it took
  double share = 1.0;    // of the steps, drawn at random

  bool is_none() const { return seconds <= 0 && factor <= 1; }
  std::string to_string() const;  // as it is written on a command line

  bool operator==(const Delay&) const = default;
};

// Processor time of this thread: what others take from it on a full machine is not in it, and so not multiplied.
double thread_seconds();

// One worker's delays. Used by one thread.
class Straggler {
 public:
  // The same seed and rank slow down the same steps. `clock` gives seconds and runs while work is done.
  Straggler(const Delay& delay, std::uint64_t seed, std::uint32_t rank, std::function<double()> clock = thread_seconds);

  bool is_one() const { return !delay_.is_none(); }

  // A step's work begins: from here on the clock counts.
  void begin_work();

  // It is done: waits as long as this step is slowed down. Returns early, with false, once `stop` says true.
  bool slow_down(const std::function<bool()>& stop);

  // How long to wait after `work_seconds` of work. Sleeping takes longer than was asked for, which is made up for by
  // the waits that follow: told what the last one took, they are right in the mean.
  double wait_after(double work_seconds);
  void waited(double seconds);

 private:
  Delay delay_;
  std::function<double()> clock_;
  std::mt19937_64 generator_;
  double work_began_ = 0.0;
  double owed_ = 0.0;  // seconds; below 0: waited too long
  double last_ = 0.0;  // by what the last slow step was slowed down
};

// Waits; returns early, with false, once `stop` says true.
bool wait_seconds(double seconds, const std::function<bool()>& stop);

}  // namespace ps::train
