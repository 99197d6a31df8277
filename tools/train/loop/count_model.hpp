// The model `count`: each worker adds 1.0 to every element of the variable `var`, so that a lost update shows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/worker.hpp"
#include "train/loop/gpu_place.hpp"

namespace ps_shm::train {

inline constexpr const char* kCountVariable = "var";
inline constexpr std::uint64_t kMaxExactCount = std::uint64_t{1} << 24;  // float32 holds every integer up to it

struct CountOptions {
  std::uint64_t size = 1;         // elements; one: a scalar
  std::uint64_t steps = 1000;     // adds
  double interval_seconds = 0.0;  // pause after each
  std::optional<GpuPlace> gpu;    // holds the ones in its memory; none: in host memory
  std::function<bool()> stop_requested;
  std::function<void(const std::string&)> warn;
  // Called every two seconds, with the variable's values.
  std::function<void(std::uint64_t steps, std::uint64_t global_steps, std::span<const float> values)> report;
};

struct CountResult {
  std::uint64_t steps = 0;
  double began_unix = 0.0, seconds = 0.0;
  bool is_interrupted = false;
  std::optional<GpuReport> gpu;
  std::vector<float> values;  // as this worker saw them at its end
};

// Pushes ones out of a GPU's memory.
class GpuCounter {
 public:
  virtual ~GpuCounter() = default;
  virtual void push() = 0;
  virtual GpuReport report() const = 0;
};

// Requires: options.gpu; all outlive it. Throws Error if the GPU cannot be used, or has too little memory.
std::unique_ptr<GpuCounter> make_gpu_counter(Worker& worker, const Variable& variable, const CountOptions& options);

// Throws Error if the job has a different variable of that name, or no space for it.
CountResult count_up(Worker& worker, const CountOptions& options);

}  // namespace ps_shm::train
