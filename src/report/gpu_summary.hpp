// Statistics of a worker's GPU, as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "train/loop/gpu_place.hpp"

namespace ps_shm::report {

nlohmann::ordered_json to_json(const train::GpuReport& report);

// "GPU NVIDIA H200: pulls by a kernel, ...": one line.
std::string to_text(const train::GpuReport& report);

}  // namespace ps_shm::report
