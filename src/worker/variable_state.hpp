// A worker's side of one variable: where it lies, and which version of each chunk (block) was pulled last.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "ps/variable.hpp"
#include "shm/inplace_slot.hpp"
#include "shm/versioned_slot.hpp"
#include "update/rules.hpp"

namespace ps {

struct Variable::State {
  State(const shm::VariableShm& shared, std::uint32_t where, std::byte* shard);

  const shm::VariableShm& record;
  std::uint32_t position;
  std::string name;
  std::optional<shm::VersionedVariable> versioned;
  std::optional<shm::InplaceVariable> inplace;
  std::vector<std::uint64_t>
      pulled;  // per chunk or block, this worker's own updates since then counted in; or kNotPulled

  static constexpr std::uint64_t kNotPulled = ~std::uint64_t{0};

  void forget_pulls() { std::fill(pulled.begin(), pulled.end(), kNotPulled); }
  void require_size(std::size_t size, const char* verb) const;

  // First values. Only by the task that has claimed the initialisation.
  void set_values(std::span<const float> values) noexcept;

  // Applies the gradient to every chunk or block, beginning where other workers do not. Returns the lost swaps.
  std::uint64_t push(std::span<const float> gradient, const update::Hyper& hyper, Adds adds, shm::UpdateLabel label,
                     std::uint32_t workers, shm::Spares& spares, const std::function<void(std::uint64_t)>& staleness);

 private:
  std::uint64_t push_versioned(std::uint64_t chunk, const float* gradient, const update::Hyper& hyper,
                               shm::UpdateLabel label, shm::Spares& spares, std::uint64_t& retries);
  std::uint64_t push_inplace(std::uint64_t block, const float* gradient, const update::Hyper& hyper, Adds adds);
};

}  // namespace ps
