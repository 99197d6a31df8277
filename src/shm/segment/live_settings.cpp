#include "shm/segment/live_settings.hpp"

#include <bit>

#include "config/job_settings.hpp"
#include "config/modes.hpp"
#include "shm/base/futex.hpp"
#include "shm/segment/events.hpp"
#include "shm/segment/live_record.hpp"

namespace ps_shm::shm {
namespace {

bool has_clocks(Mode mode) noexcept { return traits_of(mode).has_staleness_bound; }

std::uint64_t bits(float value) noexcept { return std::bit_cast<std::uint64_t>(double(value)); }

}  // namespace

Live read_live(const JobSegments& job) noexcept {
  Live live;
  for (;;) {
    live.version = live_version(job);  // (settings.S4)
    const LiveShm& record = job.state().live[live.version % kLiveRecords];
    live.settings.mode = static_cast<Mode>(record.mode.load_relaxed());  // relaxed, as all: the version is checked
    live.settings.quorum = record.quorum.load_relaxed();
    live.settings.staleness = record.staleness.load_relaxed();
    live.settings.stale_limit = record.stale_limit.load_relaxed();
    live.settings.learning_rate = std::bit_cast<float>(record.learning_rate.load_relaxed());
    live.settings.clip_norm = std::bit_cast<float>(record.clip_norm.load_relaxed());
    live.settings.momentum = std::bit_cast<float>(record.momentum.load_relaxed());
    live.settings.beta1 = std::bit_cast<float>(record.beta1.load_relaxed());
    live.settings.workers = record.workers.load_relaxed();
    live.clock_epoch = record.clock_epoch.load_relaxed();
    fence_acquire();  // (settings.S4) pairs with settings.S2
    // The record is overwritten for version + kLiveRecords, which begins while the version is one lower.
    if (job.state().live_version.load_relaxed() - live.version < kLiveRecords - 1) return live;
  }
}

bool try_change_live(JobSegments& job, const std::function<void(LiveSettings&)>& edit) {
  if (!job.locks().try_take(kSetterByte)) return false;  // (settings.S1)
  fault_point(FaultPoint::kSetLocked);
  const Live before = read_live(job);
  LiveSettings settings = before.settings;
  try {
    edit(settings);
  } catch (...) {
    job.locks().release(kSetterByte);
    throw;
  }
  const std::uint32_t epoch =
      before.clock_epoch + (has_clocks(settings.mode) && !has_clocks(before.settings.mode) ? 1 : 0);
  fence_release();  // (settings.S2) pairs with settings.S4: a reader of a new field finds the version near it
  write_live(job.state().live[(before.version + 1) % kLiveRecords], settings, epoch);  // (settings.S2)
  fault_point(FaultPoint::kSetWritten);
  job.state().live_version.store_release(before.version + 1);  // (settings.S3) pairs with settings.S4
  fault_point(FaultPoint::kSetMoved);
  const auto note = [&](LiveKey key, std::uint64_t from, std::uint64_t to) {
    if (from == to) return;
    record_event(job, {.kind = EventKind::kSet,
                       .rank = static_cast<std::uint32_t>(key),
                       .step = job.steps_done(),
                       .first = from,
                       .second = to});
  };
  const LiveSettings& old = before.settings;
  note(LiveKey::kMode, static_cast<std::uint64_t>(old.mode), static_cast<std::uint64_t>(settings.mode));
  note(LiveKey::kStaleness, old.staleness, settings.staleness);
  note(LiveKey::kQuorum, old.quorum, settings.quorum);
  note(LiveKey::kStale, old.stale_limit, settings.stale_limit);
  note(LiveKey::kLearningRate, bits(old.learning_rate), bits(settings.learning_rate));
  note(LiveKey::kClipNorm, bits(old.clip_norm), bits(settings.clip_norm));
  note(LiveKey::kMomentum, bits(old.momentum), bits(settings.momentum));
  note(LiveKey::kBeta1, bits(old.beta1), bits(settings.beta1));
  note(LiveKey::kWorkers, old.workers, settings.workers);
  fault_point(FaultPoint::kSetRecorded);
  job.locks().release(kSetterByte);
  fault_point(FaultPoint::kSetReleased);
  futex_announce(job.state().clocks);  // a larger bound may let waiting workers pass
  for (std::uint32_t which = 0; which < kBarriers; ++which) futex_announce(job.barrier(which).futex);
  futex_announce(job.state().activity);
  remove_if_ended(job);  // names.N9
  return true;
}

}  // namespace ps_shm::shm
