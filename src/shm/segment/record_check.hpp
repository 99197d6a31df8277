// Checked copies of the directory's records, for processes that do not trust them (shm/checks/validation.hpp).
#pragma once

#include <memory>
#include <vector>

#include "shm/segment/job_segments.hpp"

namespace ps_shm::shm {

// A private copy of a record, which stays as it was when it was checked. `init` has its value at the time of the copy.
using CheckedRecord = std::unique_ptr<VariableShm>;

// All records of the directory, in order. Throws Error (kDamaged). Lock-free.
std::vector<CheckedRecord> copy_records(JobSegments& job);

}  // namespace ps_shm::shm
