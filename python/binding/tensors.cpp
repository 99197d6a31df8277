#include "tensors.hpp"

#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

namespace ps_shm::python {

std::vector<TensorSpec> tensor_specs(const nb::dict& tensors, bool rounds) {
  std::vector<TensorSpec> specs;
  for (const auto& [key, array] : tensors) {
    const auto name = nb::cast<std::string>(key);
    std::pair<std::string, Shape> kind;
    if (nb::try_cast(array, kind)) {
      specs.push_back({.name = name, .dtype = dtype_of(kind.first), .shape = kind.second});
      continue;
    }
    const Array like(array, Use::kRead, fmt::format("tensor '{}'", name));
    const bool is_rounded = rounds && like.dtype() == DType::kFloat32;
    specs.push_back({.name = name, .dtype = is_rounded ? DType::kBFloat16 : like.dtype(), .shape = like.shape()});
  }
  return specs;
}

bool rounds_to(const std::string& dtype) {
  if (!dtype.empty() && dtype_of(dtype) != DType::kBFloat16)
    throw nb::value_error(
        fmt::format("dtype '{}': float32 tensors can be published as 'bfloat16' only", dtype).c_str());
  return !dtype.empty();
}

TensorPart tensor_part(const std::vector<TensorSpec>& tensors, const std::string& name, nb::handle given,
                       std::optional<std::uint64_t> begin, bool rounds, const char* verb) {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const TensorSpec& one) { return one.name == name; });
  if (found == tensors.end()) throw nb::key_error(name.c_str());
  const std::string about = fmt::format("{}: the array for tensor '{}'", verb, name);
  Array array(given, Use::kRead, about);
  const bool is_rounded = rounds && found->dtype == DType::kBFloat16 && array.dtype() == DType::kFloat32;
  const DType dtype = is_rounded ? DType::kFloat32 : found->dtype;
  if (!begin || (*begin == 0 && array.size() == found->element_count()))
    array.require(dtype, found->shape, about);
  else
    array.require_type(dtype, about);
  const std::uint64_t first = begin.value_or(0);
  if (first > found->element_count() || array.size() > found->element_count() - first)
    throw nb::value_error(fmt::format("{} has {} elements: from element {} on they do not fit into {}", about,
                                      array.size(), first, found->element_count())
                              .c_str());
  return {static_cast<std::uint32_t>(found - tensors.begin()), std::move(array), first};
}

}  // namespace ps_shm::python
