// Rates and histories out of figures that are looked at again and again. Knows no job.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "view/probe.hpp"
#include "watch/model.hpp"

namespace ps::watch {

// Counts that only grow, as rates over the last seconds.
class Rates {
 public:
  explicit Rates(double window_seconds = 2.0) : window_seconds_(window_seconds) {}

  // Counts of another number than before begin anew.
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

// Evenly spaced values of a long time in bounded room: where it is full, two become their mean.
class History {
 public:
  static constexpr std::size_t kMost = 512;

  void add(double value);
  const std::vector<double>& values() const { return values_; }

 private:
  std::vector<double> values_;
  std::size_t each_ = 1, pending_ = 0;  // how many one value stands for; how many the next one has
  double sum_ = 0;
};

// Which phase a worker is in, of looks at its words. No word says "pulling": a training loop that pulls the same number of
// times in each step has made fewer pulls before its computation than behind it.
class PhaseWatch {
 public:
  void look(double seconds, const RankLook& rank);

  Phase phase() const { return phase_; }
  double phase_seconds(double now) const { return now - since_; }
  bool is_since_before() const { return is_since_before_; }
  double silent_seconds(double now) const { return now - progress_; }
  // Of the last looks: with each call, those before count for less.
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
  std::deque<Count> counts_, begins_;  // of the last looks; of the first look at each of the last steps
  std::array<double, kLivePhases> looks_{};
};

}  // namespace ps::watch
