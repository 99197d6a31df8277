// Jobs of workers in this process: short forms for their settings.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "ps_shm/worker.hpp"
#include "support/test_job.hpp"

namespace ps_shm::test {

inline JobConfig settings(std::uint32_t workers, Mode mode) {
  JobConfig config;
  config.job = test::unique_job_name();
  config.workers = workers;
  config.mode = mode;
  config.step_timeout = Seconds(600);
  return config;
}

inline WorkerOptions options(const JobConfig& config, std::optional<std::uint32_t> rank = {},
                             std::uint32_t threads = 1) {
  WorkerOptions given;
  given.job = config.job;
  given.rank = rank;
  given.threads = threads;
  given.log = [](const std::string&) {};
  return given;
}

inline void zero(std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); }

inline VariableSpec vector_of(std::uint64_t elements, UpdateRule rule = UpdateRule::kAdd) {
  return {.name = "v", .shape = {elements}, .rule = rule};
}

}  // namespace ps_shm::test
