// Finds the tensors of a bundle by their names.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "ps_shm/bundle_spec.hpp"

namespace ps_shm::shm {

class TensorNames {
 public:
  TensorNames() = default;
  explicit TensorNames(const std::vector<TensorSpec>& tensors) : by_name_(tensors.size()) {
    std::iota(by_name_.begin(), by_name_.end(), 0U);
    std::sort(by_name_.begin(), by_name_.end(),
              [&](std::uint32_t a, std::uint32_t b) { return tensors[a].name < tensors[b].name; });
  }

  // Requires, as the next: the tensors that this was made of.
  std::optional<std::uint32_t> find(const std::vector<TensorSpec>& tensors, std::string_view name) const {
    const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                        [&](std::uint32_t a, std::string_view b) { return tensors[a].name < b; });
    if (found == by_name_.end() || tensors[*found].name != name) return std::nullopt;
    return *found;
  }

  // A tensor whose name another one has, too.
  std::optional<std::uint32_t> repeated(const std::vector<TensorSpec>& tensors) const {
    const auto found = std::adjacent_find(by_name_.begin(), by_name_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return tensors[a].name == tensors[b].name;
    });
    return found == by_name_.end() ? std::nullopt : std::optional(*found);
  }

 private:
  std::vector<std::uint32_t> by_name_;  // the tensors' numbers, sorted by their names
};

}  // namespace ps_shm::shm
