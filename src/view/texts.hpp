// What the inspector says of waits and events, in words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ps/job_view.hpp"
#include "shm/events.hpp"
#include "shm/job_segments.hpp"

namespace ps {

// What the worker of that rank waits for, with whom; empty: for nothing. `states`: of all ranks.
std::string waiting_text(const shm::JobSegments& job, std::uint32_t rank, const std::vector<WorkerState>& states);

Event describe_event(const shm::JobSegments& job, const shm::EventRecord& record);

}  // namespace ps
