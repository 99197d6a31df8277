// A job of one worker with three variables, for tests of snapshots.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/snapshot.hpp"
#include "ps_shm/worker.hpp"
#include "support/job.hpp"

namespace ps_shm::test::snapshots {

inline const auto kZeros = [](std::size_t, std::span<float> values) { std::fill(values.begin(), values.end(), 0.0F); };

inline std::vector<VariableSpec> specs() {
  return {{.name = "a", .shape = {3000}}, {.name = "b", .shape = {10}}, {.name = "c", .shape = {700}}};
}

inline std::vector<std::vector<float>> copies(const Snapshot& snapshot, const std::vector<VariableSpec>& wanted) {
  std::vector<std::vector<float>> all;
  for (const VariableSpec& spec : wanted) {
    all.emplace_back(spec.element_count());
    snapshot.copy(spec.name, all.back());
  }
  return all;
}

inline bool are_all(const std::vector<std::vector<float>>& values, float wanted) {
  for (const auto& one : values)
    for (const float value : one)
      if (value != wanted) return false;
  return true;
}

struct Scene : Job {
  Worker worker = join();
  std::vector<Variable> variables;
  std::vector<std::vector<float>> ones;
  std::vector<std::span<const float>> gradients;

  explicit Scene(Mode mode = Mode::kAsync, const std::vector<VariableSpec>& declared = specs())
      : Job({.max_workers = 4, .mode = mode, .chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdd}}),
        variables(worker.variables(declared, kZeros)) {
    for (const VariableSpec& spec : declared) ones.emplace_back(spec.element_count(), 1.0F);
    gradients.assign(ones.begin(), ones.end());
  }
  void push() { worker.push(variables, gradients); }
};

}  // namespace ps_shm::test::snapshots
