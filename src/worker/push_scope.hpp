// Announces pushes to snapshotters: everything pushed during a scope belongs to one snapshot point
// (shm/steps/snapshot_point.hpp).
#pragma once

#include <algorithm>
#include <cstdint>

#include "shm/base/clock.hpp"
#include "shm/steps/snapshot_point.hpp"
#include "worker/core.hpp"

namespace ps_shm {

// Scopes nest; the outermost one counts. Only for modes whose pushes apply at once.
class PushScope {
 public:
  static constexpr std::size_t kLongFloats = std::size_t{1} << 16;

  // Waits while a snapshot point is being made.
  explicit PushScope(WorkerCore& core) noexcept : core_(core) {
    if (core.open_pushes++ != 0) return;
    core.epoch = shm::begin_push(core.job, core.rank, core.entry);
    constexpr std::uint32_t kTimedEvery = 64;
    if (core.pushes_begun++ % kTimedEvery == 0) take_time();
  }
  ~PushScope() {
    if (--core_.open_pushes != 0) return;
    shm::end_push(core_.entry);
    if (began_ns_ != 0) note_time();
  }
  // Leaves the announcement as it is: for a forked child, whose parent goes on with the push.
  void abandon() noexcept { ++core_.open_pushes; }
  // Long pushes are always timed, others now and then: the patience of a snapshot depends on these times.
  void take_time() noexcept {
    if (began_ns_ == 0) began_ns_ = shm::monotonic_ns();
  }
  PushScope(const PushScope&) = delete;
  PushScope& operator=(const PushScope&) = delete;

 private:
  [[gnu::noinline]] void note_time() noexcept {
    const std::uint64_t before = core_.entry.push_ns.load_relaxed();  // relaxed, as the next: an estimate
    core_.entry.push_ns.store_relaxed(std::max(shm::monotonic_ns() - began_ns_, before - before / 8));
  }

  WorkerCore& core_;
  std::uint64_t began_ns_ = 0;
};

}  // namespace ps_shm
