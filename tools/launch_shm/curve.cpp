#include "launch_shm/curve.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/repeating.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::tools {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{256} << 20;

}  // namespace

Curve::Curve(std::uint64_t points, std::uint64_t last_step, const Workload& workload)
    : points_(points), last_step_(last_step), workload_(workload) {
  std::uint64_t bytes = 0;
  for (const train::ParameterSpec& parameter : workload.variables()) bytes += parameter.count() * sizeof(float);
  const std::uint64_t most = std::max<std::uint64_t>(1, kMaxBytes / bytes);
  was_thinned_ = points_ > most;
  points_ = std::min(points_, most);
  snapshots_.reserve(points_);
}

void Curve::look(const JobView& view) {
  const std::uint64_t step = view.global_step();
  looked_at_ = unix_seconds();
  if (step == 0 || idle_until_ == 0.0) idle_until_ = looked_at_;
  if (step < next_ || step >= last_step_ || snapshots_.size() >= points_) return;
  Snapshot snapshot;
  try {
    for (const train::ParameterSpec& parameter : workload_.variables())
      snapshot.values.push_back(view.values(parameter.name));
  } catch (const Error&) {
    return;  // not declared or not initialised yet
  }
  // Chunks are copied one after the other, while others push. The copy is dated at its end: by then, at the latest, the
  // parameters were as good.
  snapshot.step = std::min(view.global_step(), last_step_);
  snapshot.unix_seconds = unix_seconds();
  const double reached = double(points_) * std::sqrt(double(snapshot.step) / double(last_step_));
  const double share = (std::floor(reached) + 1) / double(points_);
  next_ = std::max(snapshot.step + 1, static_cast<std::uint64_t>(std::ceil(share * share * double(last_step_))));
  snapshots_.push_back(std::move(snapshot));
}

int Curve::wait_ms(int most) const {
  // Copies are due at (k / points)^2 of the time, so that after a time t the gap to the next is at least 2 t / points.
  const double ms = 1000.0 * (looked_at_ - idle_until_) / (2.0 * double(points_));
  return static_cast<int>(std::clamp(ms, 1.0, double(most)));
}

std::vector<report::CurvePoint> Curve::evaluate(Workload& workload, double began_unix) const {
  std::vector<report::CurvePoint> curve;
  for (const Snapshot& snapshot : snapshots_)
    curve.push_back({std::max(0.0, snapshot.unix_seconds - began_unix), snapshot.step, workload.epochs(snapshot.step),
                     workload.evaluate(spans_of(snapshot.values))});
  return curve;
}

}  // namespace ps_shm::tools
