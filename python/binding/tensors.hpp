// The tensors of a publication, as Python describes and gives them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "ps_shm/bundle_spec.hpp"
#include "shm/publication/tensor_names.hpp"

namespace ps_shm::python {

// The tensors of a publication, which are found by their names.
class NamedTensors {
 public:
  explicit NamedTensors(std::vector<TensorSpec> all) : all_(std::move(all)), names_(all_) {}

  const std::vector<TensorSpec>& all() const noexcept { return all_; }
  const TensorSpec& operator[](std::uint32_t number) const { return all_[number]; }
  bool contains(const std::string& name) const { return names_.find(all_, name).has_value(); }
  std::uint32_t find(const std::string& name) const;  // throws Error (NOT_FOUND)

 private:
  std::vector<TensorSpec> all_;
  shm::TensorNames names_;
};

// By name an array, of which only shape and dtype are used, or a pair of these. With `rounds` arrays of float32 stand for
// tensors of bfloat16. Raises TypeError, ValueError.
std::vector<TensorSpec> tensor_specs(const nb::dict& tensors, bool rounds);
// Whether tensors are rounded to that dtype: bfloat16, or None, which means that they are not. Raises TypeError, ValueError.
bool rounds_to(nb::handle dtype);

// One writer's slices, for each tensor's name Python's slices along its first axes: slice(0, 3), or a tuple of them. Raises
// NotFound, TypeError, ValueError.
std::vector<Slice> slices_of(const NamedTensors& tensors, const nb::dict& given);

// The arrays for the tensors, in their order. With `some`, tensors without an array are unset; with `rounds` those of a tensor
// of bfloat16 may be of float32. Raises TypeError, ValueError; `verb` begins the message.
std::vector<std::optional<Array>> tensor_arrays(const std::vector<TensorSpec>& tensors, const nb::dict& given, Use use,
                                                const char* verb, bool some, bool rounds);

// Elements for a tensor: all of them, or some from `begin` on.
struct TensorPart {
  std::uint32_t tensor;
  Array array;
  std::uint64_t begin;  // in elements
};
// `begin` counts elements; unset: the array has all of them. With `rounds` those of a tensor of bfloat16 may be of float32.
// Raises NotFound, TypeError, ValueError; `verb` begins the message.
TensorPart tensor_part(const NamedTensors& tensors, const std::string& name, nb::handle given,
                       std::optional<std::uint64_t> begin, bool rounds, const char* verb);

}  // namespace ps_shm::python
