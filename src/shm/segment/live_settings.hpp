// Runtime settings, which may change while the job runs: mode (async, ssp), staleness, quorum, learning rate, clipping,
// momentum and number of workers.
//
// Record v % kLiveRecords is valid while `live_version` is v. A change writes the next record, then advances the
// version:
//   change   settings.S1 lock byte kSetterByte: one change at a time; the kernel frees the byte of a dead process. The
//                        current settings are read only after that
//            settings.S2 fence release; record v + 1, relaxed
//            settings.S3 live_version = v + 1, release      pairs with settings.S4; a kill before it changes nothing
//   read     settings.S4 live_version, acquire; the record; fence acquire; the version has not come near this record
//                        again, otherwise start again
// Progress: reading is lock-free (it repeats only when kLiveRecords - 1 changes have passed). A change does not wait:
// it is refused while another change is under way.
#pragma once

#include <cstdint>
#include <functional>

#include "shm/segment/job_segments.hpp"

namespace ps_shm::shm {

struct Live {
  LiveSettings settings;
  std::uint32_t clock_epoch = 0;  // ssp_clock.hpp
  std::uint64_t version = 0;
};

inline std::uint64_t live_version(const JobSegments& job) noexcept {
  return job.state().live_version.load_acquire();  // (settings.S4) pairs with settings.S3: the record
}

Live read_live(const JobSegments& job) noexcept;

// Lets `edit` alter the current settings while no other process can. False: another process is changing them. Throws
// what `edit` throws; nothing has changed then. Requires: the edited settings pass check().
[[nodiscard]] bool try_change_live(JobSegments& job, const std::function<void(LiveSettings&)>& edit);

}  // namespace ps_shm::shm
