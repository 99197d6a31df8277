// A job with one table of rows and one worker, and the initial values of the rows.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "support/job.hpp"

namespace ps_shm::test {

// The seed says where the rows of a table by key lie: the same in each run of a test.
inline constexpr std::uint64_t kRowSeed = 1;

inline JobConfig row_config(UpdateRule rule) {
  return config_of(
      {.max_workers = 8, .layout = Layout::kInplace, .optimizer = {.rule = rule, .lr = 0.1F}, .seed = kRowSeed});
}

inline std::vector<std::uint32_t> ids_of(std::vector<std::uint32_t> ids) { return ids; }
inline std::vector<std::uint32_t> ids_of_all(std::uint64_t rows) {
  std::vector<std::uint32_t> ids(rows);
  std::iota(ids.begin(), ids.end(), 0U);
  return ids;
}

// The initial value of element k of a row: small fractions, so that sums of them are exact.
inline float first_of_row(std::uint64_t row, std::uint64_t k) { return float((row * 31 + k * 7) % 64) / 32 - 1; }

struct RowsJob : VariableJob {
  std::uint64_t width = variable.row_size();

  RowsJob(const JobConfig& given, const std::vector<std::uint64_t>& shape)
      : VariableJob(given, {.name = "table", .shape = shape, .layout = Layout::kInplace, .regularize = true},
                    [&](std::span<float> out) {
                      for (std::size_t i = 0; i < out.size(); ++i) out[i] = first_of_row(i / shape[1], i % shape[1]);
                    }) {}

  float first(std::uint64_t row, std::uint64_t k) const { return first_of_row(row, k); }
  std::vector<float> first_row(std::uint64_t row) const {
    std::vector<float> values(width);
    for (std::uint64_t k = 0; k < width; ++k) values[k] = first(row, k);
    return values;
  }

  void push(const std::vector<std::uint32_t>& ids, const std::vector<float>& gradients) {
    worker.push_rows(variable, ids, gradients);
  }
};

}  // namespace ps_shm::test
