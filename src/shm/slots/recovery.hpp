// Recovery of the free buffers that a dead rank had in flight (slot.V6).
#pragma once

#include <cstdint>

#include "shm/segment/job_segments.hpp"

namespace ps_shm::shm {

// Recovers what the rank's previous owner had in flight. Requires: the rank's lock byte is held through `locks`, and
// no push of the rank is under way. False: the fate of a buffer depends on a living process that is stopped between
// its swap and its note. That buffer stays out of use, the others can be used; call again later.
bool recover_buffers(JobSegments& job, std::uint32_t rank, const TaskLocks& locks);

}  // namespace ps_shm::shm
