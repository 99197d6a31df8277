#include "shm/segment/live_settings.hpp"

#include "config/modes.hpp"
#include "shm/base/futex.hpp"
#include "shm/segment/events.hpp"
#include "shm/segment/live_record.hpp"

namespace ps_shm::shm {
namespace {

bool has_clocks(Mode mode) noexcept { return traits_of(mode).has_staleness_bound; }

}  // namespace

Live read_live(const JobSegments& job) noexcept {
  Live live;
  for (;;) {
    live.version = live_version(job);  // (settings.S4)
    const LiveShm& record = job.state().live[live.version % kLiveRecords];
    config::for_each_live([&](const auto& row) {  // relaxed, as all: the version is checked
      config::set_from_word(live.settings.*row.live, word_of(record, row.key).load_relaxed());
    });
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
  config::for_each_live([&](const auto& row) {
    const std::uint64_t from = config::live_word(before.settings.*row.live);
    const std::uint64_t to = config::live_word(settings.*row.live);
    if (from == to) return;
    record_event(job, {.kind = EventKind::kSet,
                       .rank = static_cast<std::uint32_t>(row.key),
                       .step = job.steps_done(),
                       .first = from,
                       .second = to});
  });
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
