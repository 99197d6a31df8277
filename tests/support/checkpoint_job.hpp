// A job whose checkpoints a test saves and restores.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/checkpoint.hpp"
#include "ps_shm/job_view.hpp"
#include "support/error_text.hpp"
#include "support/job.hpp"

namespace ps_shm::test::checkpoints {

namespace fs = std::filesystem;

// A job whose worker declares variables and generates their pushes.
struct TrainedJob : Job {
  Worker worker = join(0);
  std::vector<VariableSpec> specs;
  std::vector<Variable> variables;

  static std::vector<VariableSpec> usual() {
    return {{.name = "a", .shape = {50, 30}}, {.name = "b/c.d", .shape = {10, 3}}};
  }

  explicit TrainedJob(const JobConfig& given = {.chunk_bytes = 1024},
                      const std::vector<VariableSpec>& declared = usual())
      : Job(given), specs(declared), variables(worker.variables(specs, [](std::size_t i, std::span<float> values) {
          for (std::size_t k = 0; k < values.size(); ++k) values[k] = 0.01F * float(k % 89) + float(i) - 0.3F;
        })) {}

  void train(int steps) {
    for (int step = 0; step < steps; ++step) {
      for (const Variable& variable : variables) {
        std::vector<float> gradient(variable.element_count());
        for (std::size_t k = 0; k < gradient.size(); ++k)
          gradient[k] = 0.05F * float((k + std::size_t(step)) % 13) - 0.2F;
        worker.push(variable, gradient);
      }
      worker.step();
      worker.report(1.5, std::uint64_t(step + 1) * 32);
    }
  }

  std::uint64_t digest() const { return view().digest(); }
  std::string save(const std::string& dir, const CheckpointOptions& options = {}) const {
    return Checkpoint::save(view(), dir, options);
  }
};

inline void replace_in(const std::string& path, const std::string& from, const std::string& to) {
  std::ifstream in(path);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  std::ofstream(path) << text;
}

}  // namespace ps_shm::test::checkpoints
