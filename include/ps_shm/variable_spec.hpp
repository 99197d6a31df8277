/// @file
/// The declaration of a named variable: its shape and element type, its layout, and its update rule.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ps_shm/export.hpp"
#include "ps_shm/optimizer.hpp"
#include "ps_shm/types.hpp"

namespace PS_SHM_API ps_shm {

/// Declares one variable. All workers of a job must declare a variable alike (Worker::variable()).
struct VariableSpec {
  std::string name{};  ///< 1 to 127 characters of [A-Za-z0-9_.:/-]
  /// Extents of at most 8 axes, each at least 1, with at most 2^40 elements in all. Empty: a scalar.
  std::vector<std::uint64_t> shape{};
  std::optional<UpdateRule> rule{};  ///< unset: that of the job's optimizer; add for types that take no gradients
  /// Gradients apply to float32 and bfloat16. A variable of another type holds bytes such as counters or tables of
  /// tokens: it can be pulled, added to and assigned, its rule is add, and its layout is versioned.
  ///
  /// bfloat16 takes half the memory of float32. Gradients for it are of float32. Each update computes in float32 and
  /// rounds the new values stochastically, so that small changes are not lost: the expected value is exact. Assigned
  /// values are rounded to nearest. With layout versioned the optimizer state is of float32, and the random bits depend
  /// only on the job's seed, the variable's name, the element and the number of the update, so mode sync stays
  /// deterministic. In place, the state beside each element is of bfloat16, too, and is rounded alike, a state of the
  /// whole row is of float32, and the bits depend on the rank, too.
  DType dtype = DType::kFloat32;
  std::optional<Layout> layout{};  ///< unset: JobConfig::layout; versioned for types that take no gradients
  float regularize = 0.0F;  ///< multiplies the job's l2, l1 and weight_decay for this variable; 0: they do not apply
  float lr_scale = 1.0F;    ///< multiplies the job's learning rate for this variable

  /// The number of elements: the product of the extents, 1 for a scalar.
  std::uint64_t element_count() const noexcept;
};

}  // namespace ps_shm
