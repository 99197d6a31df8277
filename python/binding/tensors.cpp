#include "tensors.hpp"

#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "errors.hpp"

namespace ps_shm::python {
namespace {

// The dtype that an array for the tensor must have.
DType dtype_for(const TensorSpec& tensor, const Array& array, bool rounds) {
  const bool is_rounded = rounds && tensor.dtype == DType::kBFloat16 && array.dtype() == DType::kFloat32;
  return is_rounded ? DType::kFloat32 : tensor.dtype;
}

}  // namespace

std::vector<TensorSpec> tensor_specs(const nb::dict& tensors, bool rounds) {
  std::vector<TensorSpec> specs;
  for (const auto& [key, array] : tensors) {
    const auto name = name_in(key);
    if ((nb::isinstance<nb::tuple>(array) || nb::isinstance<nb::list>(array)) && nb::len(array) == 2) {
      specs.push_back({.name = name,
                       .dtype = dtype_of(nb::object(array[0])),
                       .shape = shape_of(nb::object(array[1]), fmt::format("tensor '{}': the shape", name))});
    } else {
      const Array like(array, Use::kRead, fmt::format("tensor '{}'", name));
      specs.push_back({.name = name, .dtype = like.dtype(), .shape = like.shape()});
    }
    if (rounds && specs.back().dtype == DType::kFloat32) specs.back().dtype = DType::kBFloat16;
  }
  return specs;
}

std::uint32_t NamedTensors::find(const std::string& name) const {
  const std::optional<std::uint32_t> found = names_.find(all_, name);
  if (!found) {
    std::vector<std::string> names;
    for (const TensorSpec& one : all_) names.push_back(one.name);
    fail_not_found("the publication", "tensor", name, names);
  }
  return *found;
}

std::vector<Slice> slices_of(const NamedTensors& tensors, const nb::dict& given) {
  std::vector<Slice> slices;
  for (const auto& [key, value] : given) {
    const auto name = name_in(key);
    Slice& slice = slices.emplace_back();
    slice.tensor = tensors.find(name);
    const Shape& shape = tensors[slice.tensor].shape;
    const nb::tuple axes = nb::isinstance<nb::tuple>(value) ? nb::borrow<nb::tuple>(value) : nb::make_tuple(value);
    if (axes.size() > shape.size())
      throw nb::value_error(
          fmt::format("the slice of tensor '{}' has {} axes, not {}", name, axes.size(), shape.size()).c_str());
    slice.begin.assign(shape.size(), 0);
    slice.extent = shape;
    for (std::size_t axis = 0; axis < axes.size(); ++axis) {
      if (!nb::isinstance<nb::slice>(axes[axis]))
        throw nb::type_error(
            fmt::format("the slice of tensor '{}' must consist of slices, such as slice(0, 3)", name).c_str());
      const auto [begin, end, step, length] = nb::borrow<nb::slice>(axes[axis]).compute(shape[axis]);
      if (step != 1 || length == 0)
        throw nb::value_error(fmt::format("the slice of tensor '{}' must have elements, all those between two indices; "
                                          "leave out a tensor of which a writer has nothing",
                                          name)
                                  .c_str());
      slice.begin[axis] = static_cast<std::uint64_t>(begin);
      slice.extent[axis] = length;
    }
  }
  return slices;
}

bool rounds_to(nb::handle dtype) {
  if (dtype.is_none()) return false;
  if (dtype_of(dtype) != DType::kBFloat16)
    throw nb::value_error(
        fmt::format("dtype '{}': float32 tensors can be published as 'bfloat16' only", nb::str(dtype).c_str()).c_str());
  return true;
}

std::vector<std::optional<Array>> tensor_arrays(const std::vector<TensorSpec>& tensors, const nb::dict& given, Use use,
                                                const char* verb, bool some, bool rounds) {
  std::vector<std::optional<Array>> all;
  std::size_t found = 0;
  for (const TensorSpec& one : tensors) {
    all.emplace_back();
    const nb::object name = nb::cast(one.name);
    if (!given.contains(name)) {
      if (some) continue;
      throw nb::value_error(fmt::format("{}: tensor '{}' is not among the arrays", verb, one.name).c_str());
    }
    const std::string about = fmt::format("{}: the array for tensor '{}'", verb, one.name);
    all.back().emplace(given[name], use, about);
    all.back()->require(dtype_for(one, *all.back(), rounds), one.shape, about);
    ++found;
  }
  if (found != given.size()) {
    const NamedTensors named(tensors);
    for (const auto& [key, array] : given)
      if (const std::string name = name_in(key); !named.contains(name))
        throw nb::value_error(fmt::format("{}: there is no tensor '{}'", verb, name).c_str());
  }
  return all;
}

TensorPart tensor_part(const NamedTensors& tensors, const std::string& name, nb::handle given,
                       std::optional<std::uint64_t> begin, bool rounds, const char* verb) {
  const std::uint32_t number = tensors.find(name);
  const TensorSpec& tensor = tensors[number];
  const std::string about = fmt::format("{}: the array for tensor '{}'", verb, name);
  Array array(given, Use::kRead, about);
  const DType dtype = dtype_for(tensor, array, rounds);
  if (!begin || (*begin == 0 && array.size() == tensor.element_count()))
    array.require(dtype, tensor.shape, about);
  else
    array.require_type(dtype, about);
  const std::uint64_t first = begin.value_or(0);
  if (first > tensor.element_count() || array.size() > tensor.element_count() - first)
    throw nb::value_error(fmt::format("{} has {} elements: from element {} on they do not fit into {}", about,
                                      array.size(), first, tensor.element_count())
                              .c_str());
  return {number, std::move(array), first};
}

}  // namespace ps_shm::python
