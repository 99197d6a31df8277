// Loss against time of a job that others train: copies of its parameters while it runs, evaluated when it is over, so
// that the evaluation takes no processor from the workers.
#pragma once

#include <cstdint>
#include <vector>

#include "ps/job_view.hpp"
#include "report/summary.hpp"
#include "workload.hpp"

namespace ps::tools {

class Curve {
 public:
  // Up to `points` copies before global step `last_step`; fewer where they would take more than 256 MiB. The k-th comes
  // at the share (k / points)^2 of the steps: a loss falls fastest at first.
  Curve(std::uint64_t points, std::uint64_t last_step, const Workload& workload);

  // Copies the parameters if it is time to and they are initialised.
  void look(const JobView& view);

  // How long one may wait before the next look, from 1 ms up to `most`: a small part of the time between two copies.
  int wait_ms(int most) const;

  bool was_thinned() const { return was_thinned_; }
  std::uint64_t points() const { return points_; }

  // Times count from `began_unix`; of what came before, 0.
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
  std::uint64_t next_ = 0;   // the global step from which on the next copy is due
  double idle_until_ = 0.0;  // when nobody had trained yet, as far as seen
  double looked_at_ = 0.0;
  std::vector<Snapshot> snapshots_;
};

}  // namespace ps::tools
