// What a worker's GPU has done, for people and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "train/gpu/gpu_place.hpp"

namespace ps::report {

nlohmann::ordered_json to_json(const train::GpuReport& report);

// "GPU NVIDIA H200: pulls by a kernel, ...": one line.
std::string to_text(const train::GpuReport& report);

}  // namespace ps::report
