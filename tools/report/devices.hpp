// The available GPUs and how workers would use them, as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "device/probe.hpp"

namespace ps_shm::report {

// Every answer of the driver (null: the driver does not know the query), and each GPU's strategies for a versioned job
// and for an in-place job with a rule that only adds; without a GPU, the reason.
nlohmann::ordered_json to_json(const device::GpuProbe& probe);

// The same as text; takes the result of to_json().
std::string devices_as_text(const nlohmann::ordered_json& found);

// Whether the machine shows the device of a GPU, usable or not.
bool has_gpu_device();

}  // namespace ps_shm::report
