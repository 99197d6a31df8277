// Loss against time of a job that others train: copies its parameters during the run and evaluates the copies later,
// so that the evaluation takes no processor time from the workers.
#pragma once

#include <cstdint>
#include <vector>

#include "common/workload.hpp"
#include "ps_shm/job_view.hpp"
#include "report/summary.hpp"

namespace ps_shm::tools {

class Curve {
 public:
  // Up to `points` copies before global step `last_step`; fewer if they would take more than 256 MiB. Copy k is taken
  // at the fraction (k / points)^2 of the steps, because a loss falls fastest at first.
  Curve(std::uint64_t points, std::uint64_t last_step, const Workload& workload);

  // Copies the parameters if a copy is due and they are initialised.
  void look(const JobView& view);

  // How long the caller may wait before the next call, 1 ms to `most`: a small part of the time between two copies.
  int wait_ms(int most) const;

  bool was_thinned() const { return was_thinned_; }
  std::uint64_t points() const { return points_; }

  // Times count from `began_unix`; they are 0 for earlier copies.
  std::vector<report::CurvePoint> evaluate(Workload& workload, double began_unix) const;

 private:
  struct Snapshot {
    double unix_seconds = 0.0;
    std::uint64_t step = 0;
    std::vector<std::vector<float>> values;
  };

  std::uint64_t points_, last_step_;
  const Workload& workload_;
  bool was_thinned_ = false;
  std::uint64_t next_ = 0;   // the global step from which the next copy is due
  double idle_until_ = 0.0;  // the last time at which no training had been seen
  double looked_at_ = 0.0;
  std::vector<Snapshot> snapshots_;
};

}  // namespace ps_shm::tools
