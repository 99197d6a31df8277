// Statistics of a worker's GPU, as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "train/loop/gpu_place.hpp"

namespace ps_shm::report {

nlohmann::ordered_json to_json(const train::GpuReport& report);

// "GPU NVIDIA H200: pulls by a kernel, ...", and why in a line of its own.
std::string to_text(const train::GpuReport& report);

// How the worker transfers, from what to_json() has made: "NVIDIA H200: pulls by a kernel, ...", and why in a line of its
// own. Empty if it is no such object.
std::string transfers_text(const nlohmann::ordered_json& gpu);

}  // namespace ps_shm::report
