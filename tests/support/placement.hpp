// Variables in several shards, and where they lie.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "support/job.hpp"

namespace ps_shm::test {

inline VariableSpec spec(const std::string& name, std::vector<std::uint64_t> shape,
                         UpdateRule rule = UpdateRule::kAdd) {
  return {.name = name, .shape = std::move(shape), .rule = rule};
}

inline void count_up(std::size_t index, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = float(i) + float(index) / 8;
}

inline std::vector<Variable> declare(Worker& worker, const std::vector<VariableSpec>& specs) {
  return worker.variables(specs, [&](std::size_t index, std::span<float> out) {
    count_up(specs[index].name.size() + specs[index].element_count() % 5, out);
  });
}

// The shards of each variable's parts.
inline std::map<std::string, std::vector<std::uint32_t>> shards(const std::string& job) {
  std::map<std::string, std::vector<std::uint32_t>> found;
  for (const VariableInfo& variable : JobView(job).variables())
    for (const PartInfo& part : variable.parts) found[variable.name].push_back(part.shard);
  return found;
}

using Shards = std::vector<std::uint32_t>;

}  // namespace ps_shm::test
