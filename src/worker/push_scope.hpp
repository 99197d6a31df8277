// Announces pushes to those who make cuts: what is pushed while a scope lives belongs to one cut (shm/cut.hpp).
#pragma once

#include <algorithm>
#include <cstdint>

#include "shm/clock.hpp"
#include "shm/cut.hpp"
#include "worker/core.hpp"

namespace ps {

// Scopes nest: the outermost one counts. Only of modes whose pushes apply at once.
class PushScope {
 public:
  static constexpr std::size_t kLongFloats = std::size_t{1} << 16;

  // Waits while a cut is being made.
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
  // The time of long pushes is taken always, of others now and then: a snapshot's patience depends on it.
  void take_time() noexcept {
    if (began_ns_ == 0) began_ns_ = shm::now_ns();
  }
  PushScope(const PushScope&) = delete;
  PushScope& operator=(const PushScope&) = delete;

 private:
  [[gnu::noinline]] void note_time() noexcept {
    const std::uint64_t before = core_.entry.push_ns.load_relaxed();  // relaxed, as the next: an estimate
    core_.entry.push_ns.store_relaxed(std::max(shm::now_ns() - began_ns_, before - before / 8));
  }

  WorkerCore& core_;
  std::uint64_t began_ns_ = 0;
};

}  // namespace ps
