// Named variables: how one begins, and the handle that a worker uses it by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ps/export.hpp"
#include "ps/types.hpp"
#include "ps/variable_spec.hpp"

namespace PS_API ps {

// Fills the initial values, row-major: element_count() of them; of another dtype than float32 as many floats as its bytes
// take, zeros to begin with, which std::as_writable_bytes gives as bytes. Called in one worker at a time; if that worker dies,
// another one's is called, so every worker should give the same values.
using Initializer = std::function<void(std::span<float>)>;

// The same for one of several that are declared together; `index` is its place among them.
using IndexedInitializer = std::function<void(std::size_t index, std::span<float>)>;

// What becomes of a variable's optimizer state when its values are assigned.
enum class Slots {
  kKeep,  // it stays; where a value is a function of it (ftrl), that is solved for; an average begins with the values
  kReset  // it begins anew with the values, as when the variable was initialised; but that versioned, adam's and ema's
          // count of updates, which is the chunk's version, goes on
};

// Which version of each chunk of a variable a copy of it has. Empty: of none.
struct Versions {
  std::vector<std::uint64_t> of_chunks{};
};

struct VariableState;

// A worker's handle of a variable; valid as long as its Worker. Cheap to copy.
class Variable {
 public:
  const std::string& name() const noexcept;
  DType dtype() const noexcept;
  std::uint64_t element_count() const noexcept;  // of that type
  Layout layout() const noexcept;

  // For an in-place variable with at least one axis: its extent along the first axis, and the elements of one of these rows; else 0.
  std::uint64_t rows() const noexcept;
  std::uint64_t row_size() const noexcept;

  // The elements of an in-place variable where they lie, without a copy. Other processes add to them at the same time:
  // elements are whole, two of them may be from different moments.
  // Requires: layout() is kInplace, the variable is in one part, its rule is add or sgd (throws Error).
  std::span<const float> view() const;

 private:
  friend class Worker;
  friend VariableState& state_of(const Variable& variable) noexcept;  // within the library
  explicit Variable(VariableState* state) noexcept : state_(state) {}
  VariableState* state_;
};

}  // namespace ps
