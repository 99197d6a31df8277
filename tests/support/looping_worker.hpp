// A worker whose loop has hooks, and helpers for tests of hooks.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/checkpoint.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/hooks.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "support/folder.hpp"
#include "support/job.hpp"

namespace ps_shm::test {

namespace fs = std::filesystem;

inline constexpr std::uint64_t kElements = 1000;  // four chunks
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The names of the checkpoints in a folder, sorted.
inline std::vector<std::string> checkpoints_in(const Folder& folder) {
  std::vector<std::string> found = folder.files();
  std::erase_if(found, [](const std::string& name) { return !name.starts_with("step-"); });
  return found;
}

// A worker whose loop pushes gradients with `gradient` in each element; the loss of step n, from 1 on, is losses(n).
struct LoopingWorker {
  Worker worker;
  Variable variable;
  float gradient = 1;
  std::uint64_t asked = 0;

  explicit LoopingWorker(const JobConfig& config, std::uint32_t rank = 0)
      : worker(options(config, rank)), variable(worker.variable({.name = "v", .shape = {kElements}}, zero)) {}

  StepReport run(const Hooks& hooks, const std::function<double(std::uint64_t)>& losses) {
    std::vector<float> values(kElements);
    return run_steps(
        worker, hooks,
        [&] {
          worker.pull(variable, values);
          return losses(++asked);
        },
        [&] { worker.push(variable, std::vector<float>(kElements, gradient)); });
  }

  float value() {
    std::vector<float> values(kElements);
    worker.pull(variable, values);
    CHECK(std::all_of(values.begin(), values.end(), [&](float one) { return one == values[0]; }));
    return values[0];
  }

  void set(float value) { worker.assign(variable, std::vector<float>(kElements, value), Slots::kKeep); }
};

inline double falling(std::uint64_t step) { return 1.0 / double(step); }

// Calls a function in the given phases.
struct Calling : Hook {
  std::function<bool(StepLoop&, double)> on_gradient = [](StepLoop&, double) { return true; };
  std::function<void(StepLoop&, const StepReport&)> on_step = [](StepLoop&, const StepReport&) {};
  bool after_gradient(StepLoop& loop, double loss) override { return on_gradient(loop, loss); }
  void after_step(StepLoop& loop, const StepReport& report) override { on_step(loop, report); }
};

struct Lines {
  std::vector<std::string> lines;
  LogCallback log() {
    return [this](const std::string& line) { lines.push_back(line); };
  }
};

inline bool is_in(const std::string& words, const std::string& text) { return text.find(words) != std::string::npos; }

}  // namespace ps_shm::test
