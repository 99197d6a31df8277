// What is known of a job's segments whatever their state or version.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shm/segment.hpp"

namespace ps::inspect {

// "live", "orphaned" (workers without a ps), "dead", "damaged" and so on, of a control segment that open() left so.
std::string state_of(const shm::Segment& control, shm::AttachOutcome outcome);

// Whether a part of a file's name could be one.
bool is_job_name(const std::string& name);

std::uint64_t bytes_of(const std::vector<std::string>& names);
double age_seconds(std::uint64_t created_unix_ns);

}  // namespace ps::inspect
