/// @file
/// Named variables: how a variable gets its initial values, and the handle by which a worker uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/export.hpp"
#include "ps_shm/types.hpp"
#include "ps_shm/variable_spec.hpp"

namespace PS_SHM_API ps_shm {

/// Fills a variable's initial values, in row-major order. The span holds element_count() floats, all zero. For another
/// dtype than float32 it holds as many floats as the variable's bytes take; std::as_writable_bytes() gives them as
/// bytes.
///
/// It is called in one worker at a time. If that worker dies, the initializer of another worker is called, so every
/// worker should produce the same values.
using Initializer = std::function<void(std::span<float>)>;

/// An Initializer for several variables that are declared together; `index` is the variable's position among them.
using IndexedInitializer = std::function<void(std::size_t index, std::span<float>)>;

/// What happens to a variable's optimizer state when its values are assigned.
enum class Slots {
  /// The state is kept. Where the values are a function of the state (ftrl), the state is solved for. A moving average
  /// is set to the assigned values.
  kKeep,
  /// The state is reset to that of a variable that was just initialised with the assigned values, with the count of
  /// steps that adam and ema use.
  kReset
};

/// The name of a value: keep or reset.
/// @progress wait-free.
PS_SHM_API const char* to_string(Slots slots) noexcept;

/// Which version of each chunk a copy of a variable holds, for Worker::pull_if_changed(). Empty: the copy holds
/// nothing.
struct Versions {
  std::vector<std::uint64_t> of_chunks{};  ///< one per chunk (in-place: the number of pushes of each block)
};

struct VariableState;

/// A worker's handle of a variable. It is cheap to copy, and valid as long as its Worker.
class Variable {
 public:
  const std::string& name() const noexcept;      ///< the name that it was declared with
  DType dtype() const noexcept;                  ///< type of its elements
  std::uint64_t element_count() const noexcept;  ///< number of elements of type dtype()
  /// The extents of its axes; empty: a scalar.
  std::span<const std::uint64_t> shape() const noexcept;
  Layout layout() const noexcept;                ///< how it is stored

  /// VariableSpec::lr_scale as it is in force (Worker::set_factors).
  ///
  /// @throws Error with kInvalidState in a forked child.
  /// @progress wait-free.
  float lr_scale() const;
  /// The same of VariableSpec::regularize.
  ///
  /// @throws Error with kInvalidState in a forked child.
  /// @progress wait-free.
  float regularize() const;

  /// For an in-place variable with at least one axis: the extent of its first axis. Otherwise 0.
  std::uint64_t rows() const noexcept;

  /// For an in-place variable with at least one axis: the number of elements in one row of the first axis. Otherwise 0.
  std::uint64_t row_size() const noexcept;

  /// A view of the elements of an in-place variable in shared memory, without a copy. Other processes update them
  /// meanwhile: each element is whole, but two elements may be from different moments.
  ///
  /// @throws Error if layout() is not kInplace, if the dtype is not float32, if the variable is in several parts, or if
  /// its rule is neither add nor sgd (the elements then do not lie side by side); kInvalidState in a forked child.
  /// @progress wait-free.
  std::span<const float> view() const;

 private:
  friend class Worker;
  friend VariableState& state_of(const Variable& variable) noexcept;  // internal
  explicit Variable(VariableState* state) noexcept : state_(state) {}
  VariableState* state_;
};

}  // namespace ps_shm
