// Settings that change while the job runs: mode (async, ssp), staleness, quorum, rate, clipping, number of workers.
//
// Record v % kLiveRecords holds while `live_version` is v. A change writes the next record and moves the version:
//   change   settings.S1 lock byte kSetterByte: one at a time, and the kernel lets go of a dead one's; what holds is
//                        read only then
//            settings.S2 fence release; record v + 1, relaxed
//            settings.S3 live_version = v + 1, release      pairs with settings.S4; a kill before it changes nothing
//   read     settings.S4 live_version, acquire; the record; fence acquire; the version has not come near this record
//                        again, else from the top
// Progress: reading is lock-free (it repeats only when kLiveRecords - 1 changes have passed it); changing waits for
// nothing, it is refused while another one is under way.
#pragma once

#include <cstdint>
#include <functional>

#include "shm/job_segments.hpp"

namespace ps::shm {

struct Live {
  LiveSettings settings;
  std::uint32_t clock_epoch = 0;  // ssp_clock.hpp
  std::uint64_t version = 0;
};

// The first record. Only by the job's creator.
void initialise_live(JobSegments& job) noexcept;

inline std::uint64_t live_version(const JobSegments& job) noexcept {
  return job.state().live_version.load_acquire();  // (settings.S4) pairs with settings.S3: the record
}

Live read_live(const JobSegments& job) noexcept;

// `edit` alters what holds, while nobody else can. False: somebody else is changing them. Throws what `edit` throws;
// nothing is changed then. Requires: what `edit` leaves passes check().
[[nodiscard]] bool try_change_live(JobSegments& job, const std::function<void(LiveSettings&)>& edit);

}  // namespace ps::shm
