// What can be learned about a job's segments, whatever their state or version.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shm/segment/segment.hpp"

namespace ps_shm::inspect {

// Opens a segment of any user, state and version.
shm::AttachOutcome open_any(shm::Segment& segment, const std::string& name,
                            shm::Access access = shm::Access::kReadOnly);

// "live", "orphaned" (workers without a ps), "dead", "damaged" and so on, by the outcome of open() of a control file.
std::string state_of(const shm::Segment& control, shm::AttachOutcome outcome);

// The jobs that have segments in /dev/shm, whatever their state.
std::vector<std::string> job_names();

// Whether a part of a file name could be a job's name.
bool is_job_name(const std::string& name);

// The first of these names that leads to a folder, which is nobody's segment; empty if there is none.
std::string folder_among(const std::vector<std::string>& names);

std::uint64_t bytes_of(const std::vector<std::string>& names);
double age_seconds(std::uint64_t created_unix_ns);

}  // namespace ps_shm::inspect
