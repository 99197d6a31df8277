// What is completed and checked of a launch's settings before any process starts.
#pragma once

#include <optional>

#include "device/cuda_calls.hpp"
#include "launch_shm/launch.hpp"

namespace ps_shm::tools {

// Fills in settings that depend on the model, its data and this machine; `workload` is null without a model. Throws Error
// if a requested GPU does not exist.
LaunchSettings completed(LaunchSettings settings, const Workload* workload,
                         device::CudaCalls& cuda = device::cuda_calls());

// Throws Error if --place names a variable that the model does not have.
void check_places(const JobConfig& job, const Workload* workload);

// Throws Error (kNoSpace) where /dev/shm has less room than the parameters of the model take, whatever else there is.
void check_room(const LaunchSettings& settings, const Workload* workload);

// The checkpoint from which the job would resume. Throws Error if it is of another model.
std::optional<Checkpoint> checked_beginning(const LaunchSettings& settings, const Workload* workload);

}  // namespace ps_shm::tools
