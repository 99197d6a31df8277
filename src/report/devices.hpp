// What GPUs there are and how workers would use them, for people and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "device/probe.hpp"

namespace ps::report {

// Every answer of the driver (null: it does not know the question), and each GPU's strategies for a versioned job and
// for an in-place one with a rule that only adds; without a GPU, why.
nlohmann::ordered_json to_json(const device::GpuProbe& probe);

// The same, of what to_json() has returned.
std::string devices_as_text(const nlohmann::ordered_json& found);

}  // namespace ps::report
