// The available GPUs and how workers would use them, as text and as JSON.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "device/probe.hpp"

namespace ps_shm::report {

// Every answer of the driver (null: the driver does not know the query), and each GPU's strategies for a versioned job
// and for an in-place job with a rule that only adds; without a GPU, the reason.
nlohmann::ordered_json to_json(const device::GpuProbe& probe);

// The zones of the machine's memory that have pages, from the text of /proc/zoneinfo: [{"node", "zone", "bytes"}]. Of
// memory in a zone Movable, a driver that pins pages for long has to move each one out first.
nlohmann::ordered_json zones_of(const std::string& zoneinfo, std::size_t page_bytes);

// The same as text; takes the result of to_json().
std::string devices_as_text(const nlohmann::ordered_json& found);

// Whether the machine shows the device of a GPU, usable or not.
bool has_gpu_device();

}  // namespace ps_shm::report
