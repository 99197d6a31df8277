// The model `count`: each worker adds 1.0 to every element of the variable `var`, so that a lost update shows.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ps/worker.hpp"
#include "train/gpu/gpu_place.hpp"

namespace ps::train {

inline constexpr const char* kCountVariable = "var";
inline constexpr std::uint64_t kMaxExactCount = std::uint64_t{1} << 24;  // float32 holds every integer up to it

struct CountOptions {
  std::uint64_t size = 1;         // elements; one: a scalar
  std::uint64_t steps = 1000;     // adds
  double interval_seconds = 0.0;  // wait after each
  std::optional<GpuPlace> gpu;    // in whose memory the ones lie; none: in the processor's
  std::function<bool()> stop_requested;
  std::function<void(const std::string&)> warn;
  std::function<void(std::uint64_t steps, std::uint64_t global_steps)> report;  // every two seconds
};

struct CountResult {
  std::uint64_t steps = 0;
  double began_unix = 0.0, seconds = 0.0;
  bool is_interrupted = false;
  std::optional<GpuReport> gpu;
  std::vector<float> values;  // as this worker saw them at its end
};

// Throws Error where the job has another variable of that name, or no room for it.
CountResult count_up(Worker& worker, const CountOptions& options);

}  // namespace ps::train
