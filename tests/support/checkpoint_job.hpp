// A job whose checkpoints a test saves and restores.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/checkpoint.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "support/test_job.hpp"

namespace ps_shm::test::checkpoints {

namespace fs = std::filesystem;

inline JobConfig config_of(UpdateRule rule, Layout layout = Layout::kVersioned) {
  JobConfig config;
  config.job = unique_job_name();
  config.chunk_bytes = 1024;
  config.layout = layout;
  config.optimizer.rule = rule;
  config.linger = Seconds(0);
  return config;
}

// A job within one process: declares its variables and generates their pushes.
struct Job {
  JobName name;
  Server server;
  Worker worker;
  std::vector<VariableSpec> specs;
  std::vector<Variable> variables;

  static std::vector<VariableSpec> usual() {
    return {{.name = "a", .shape = {50, 30}}, {.name = "b/c.d", .shape = {10, 3}}};
  }

  explicit Job(const JobConfig& config, const std::vector<VariableSpec>& declared = usual())
      : name(config.job), server(config), worker({.job = config.job, .rank = 0}), specs(declared) {
    variables = worker.variables(specs, [](std::size_t i, std::span<float> values) {
      for (std::size_t k = 0; k < values.size(); ++k) values[k] = 0.01F * float(k % 89) + float(i) - 0.3F;
    });
  }

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

  std::uint64_t digest() const { return JobView(name.text()).digest(); }
  std::string save(const std::string& dir, const CheckpointOptions& options = {}) const {
    return Checkpoint::save(JobView(name.text()), dir, options);
  }
};

inline std::string error_of(const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

inline void replace_in(const std::string& path, const std::string& from, const std::string& to) {
  std::ifstream in(path);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  std::ofstream(path) << text;
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace ps_shm::test::checkpoints
