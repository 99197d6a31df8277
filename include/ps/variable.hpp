// Named variables: how one is specified, and the handle that a worker uses it by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ps/job_config.hpp"

namespace ps {

struct VariableSpec {
  std::string name;                    // 1 to 127 of [A-Za-z0-9_.:/-]
  std::vector<std::uint64_t> shape{};  // at most 8 axes; no axis: a scalar; every extent at least 1
  std::optional<UpdateRule> rule{};    // none: the job's optimizer
  DType dtype = DType::kFloat32;
  std::optional<Layout> layout{};  // none: the job's
  bool regularize = false;         // the job's l2, l1 and weight_decay apply

  std::uint64_t element_count() const noexcept;
};

// Fills the initial values (element_count() of them, row-major). Called in one worker at a time; if that worker dies,
// another one's is called, so every worker should give the same values.
using Initializer = std::function<void(std::span<float>)>;

// The same for one of several that are declared together; `index` is its place among them.
using IndexedInitializer = std::function<void(std::size_t index, std::span<float>)>;

// A worker's handle of a variable; valid as long as its Worker. Cheap to copy.
class Variable {
 public:
  const std::string& name() const noexcept;
  std::uint64_t element_count() const noexcept;
  Layout layout() const noexcept;

  // Of an in-place variable with at least one axis: its extent along the first axis, and the elements of one of these rows; else 0.
  std::uint64_t rows() const noexcept;
  std::uint64_t row_size() const noexcept;

  // The elements of an in-place variable where they lie, without a copy. Other processes add to them at the same time:
  // elements are whole, two of them may be from different moments.
  // Requires: layout() is kInplace, the variable is in one part, its rule is add or sgd (throws Error).
  std::span<const float> view() const;

 private:
  friend class GpuLink;
  friend class GpuRows;
  friend class Worker;
  struct State;
  explicit Variable(State* state) noexcept : state_(state) {}
  State* state_;
};

}  // namespace ps
