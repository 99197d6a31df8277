// Rates and histories of repeatedly read figures. Independent of jobs.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "inspect_shm/watch/model.hpp"
#include "inspection/probe.hpp"

namespace ps_shm::watch {

// Rates of monotonic counters over the last seconds.
class Rates {
 public:
  explicit Rates(double window_seconds = 2.0) : window_seconds_(window_seconds) {}

  // A different number of counters than before resets it.
  void add(double seconds, std::vector<std::uint64_t> counts);
  double per_second(std::size_t which) const;
  void clear() { looks_.clear(); }

 private:
  struct Look {
    double seconds;
    std::vector<std::uint64_t> counts;
  };
  double window_seconds_;
  std::deque<Look> looks_;
};

// Evenly spaced values of a long period in bounded memory: when it is full, pairs are replaced by their means.
class History {
 public:
  static constexpr std::size_t kMost = 512;

  void add(double value);
  const std::vector<double>& values() const { return values_; }

 private:
  std::vector<double> values_;
  std::size_t each_ = 1, pending_ = 0;  // how many values one entry stands for; how many the next one has so far
  double sum_ = 0;
};

// Infers a worker's phase from polls of its words. No word says "pulling", but a training loop with a fixed number of
// pulls per step has made fewer pulls before its computation than after it.
class PhaseWatch {
 public:
  void look(double seconds, const RankLook& rank);

  Phase phase() const { return phase_; }
  double phase_seconds(double now) const { return now - since_; }
  bool is_since_before() const { return is_since_before_; }
  double silent_seconds(double now) const { return now - progress_; }
  // Over recent polls: the weight of earlier polls decreases with each call.
  std::array<double, kLivePhases> take_shares();

 private:
  struct Count {
    std::uint64_t steps, pulls;
  };
  bool is_pulling(const RankLook& rank);

  Phase phase_ = Phase::kComputing;
  RankLook last_{};
  bool has_last_ = false, is_since_before_ = true;
  double since_ = 0, progress_ = 0;
  std::deque<Count> counts_, begins_;  // of recent polls; of the first poll in each recent step
  std::array<double, kLivePhases> looks_{};
};

}  // namespace ps_shm::watch
