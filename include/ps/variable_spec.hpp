// What is declared of a named variable: its shape and type, where it lies, and its update rule.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ps/export.hpp"
#include "ps/optimizer.hpp"
#include "ps/types.hpp"

namespace PS_API ps {

struct VariableSpec {
  std::string name;                    // 1 to 127 of [A-Za-z0-9_.:/-]
  std::vector<std::uint64_t> shape{};  // at most 8 axes; no axis: a scalar; every extent at least 1
  std::optional<UpdateRule> rule{};    // none: the job's optimizer
  // Other than float32: bytes that no gradient is for, such as counters and tables of tokens. They are pulled, added to and
  // assigned; their rule is add, their layout versioned.
  DType dtype = DType::kFloat32;
  std::optional<Layout> layout{};  // none: the job's
  bool regularize = false;         // the job's l2, l1 and weight_decay apply

  std::uint64_t element_count() const noexcept;
};

}  // namespace ps
