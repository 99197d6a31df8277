// A job with one table of rows and one worker, and the initial values of the rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "support/test_job.hpp"

namespace ps_shm::test {

// The seed says where the rows of a table by key lie: the same in each run of a test.
inline constexpr std::uint64_t kRowSeed = 1;

inline JobConfig row_config(UpdateRule rule) {
  JobConfig config;
  config.job = unique_job_name();
  config.seed = kRowSeed;
  config.layout = Layout::kInplace;
  config.optimizer.rule = rule;
  config.optimizer.lr = 0.1F;
  config.max_workers = 8;
  return config;
}

inline WorkerOptions quiet_options(const JobConfig& config, std::uint32_t threads = 1) {
  return {.job = config.job, .rank = {}, .threads = threads, .stop_requested = {}, .log = [](const std::string&) {}};
}

inline std::vector<std::uint32_t> ids_of(std::vector<std::uint32_t> ids) { return ids; }
inline std::vector<std::uint32_t> ids_of_all(std::uint64_t rows) {
  std::vector<std::uint32_t> ids(rows);
  std::iota(ids.begin(), ids.end(), 0U);
  return ids;
}

struct RowsJob {
  JobConfig config;
  std::uint64_t width;
  Server server;
  Worker worker;
  Variable variable;

  RowsJob(const JobConfig& settings, std::vector<std::uint64_t> shape, std::uint32_t threads = 1)
      : config(settings),
        width(shape[1]),
        server(config),
        worker(quiet_options(config, threads)),
        variable(worker.variable({.name = "table", .shape = shape, .layout = Layout::kInplace, .regularize = true},
                                 [this](std::span<float> out) {
                                   for (std::size_t i = 0; i < out.size(); ++i) out[i] = first(i / width, i % width);
                                 })) {}

  // The initial value of element k of a row: small fractions, so that sums of them are exact.
  float first(std::uint64_t row, std::uint64_t k) const { return float((row * 31 + k * 7) % 64) / 32 - 1; }
  std::vector<float> first_row(std::uint64_t row) const {
    std::vector<float> values(width);
    for (std::uint64_t k = 0; k < width; ++k) values[k] = first(row, k);
    return values;
  }

  std::vector<float> pull(const std::vector<std::uint32_t>& ids) {
    std::vector<float> out(ids.size() * width);
    worker.pull_rows(variable, ids, out);
    return out;
  }
  void push(const std::vector<std::uint32_t>& ids, const std::vector<float>& gradients) {
    worker.push_rows(variable, ids, gradients);
  }
};

}  // namespace ps_shm::test
