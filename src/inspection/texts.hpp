// The inspector's texts for waits and events.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ps_shm/job_view.hpp"
#include "shm/segment/events.hpp"
#include "shm/segment/job_segments.hpp"

namespace ps_shm {

// What the worker of that rank waits for, and for which workers; empty if it does not wait. `states`: of all ranks.
std::string waiting_text(const shm::JobSegments& job, std::uint32_t rank, const std::vector<WorkerState>& states);

// Says that more than 90 % of a worker's gradients were dropped; empty if not. `used`: how many were not dropped. The
// caller adds what that means: the model lacks what only this worker has seen, if workers have data of their own.
std::string forgotten_text(std::uint32_t rank, std::uint64_t used, std::uint64_t dropped);

// What Event::kind may be.
std::vector<std::string> event_kinds();

Event describe_event(const shm::JobSegments& job, const shm::EventRecord& record);

}  // namespace ps_shm
