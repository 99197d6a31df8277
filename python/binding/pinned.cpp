#include "pinned.hpp"

#include <nanobind/stl/string.h>

#include <string>

namespace ps_shm::python {
namespace {

// The arrays in the bundle's order, from a mapping by name or from a sequence.
std::vector<nb::object> in_order(const Bundle& self, nb::handle given) {
  std::vector<nb::object> all;
  const std::size_t count = nb::len(given);
  if (count != self.members.size())
    throw nb::value_error(
        fmt::format("the bundle has {} variables, and {} arrays are given", self.members.size(), count).c_str());
  if (nb::hasattr(given, "keys")) {
    for (const NamedVariable& one : self.members) {
      if (!nb::cast<bool>(given.attr("__contains__")(one.variable.name())))
        throw nb::value_error(
            fmt::format("the bundle's variable '{}' is not among the arrays", one.variable.name()).c_str());
      all.push_back(given[nb::cast(one.variable.name())]);
    }
  } else {
    for (std::size_t i = 0; i < count; ++i) all.push_back(given[i]);
  }
  return all;
}

// The dtype that an array for the variable must have. Gradients are of float32, to which a pull converts bfloat16.
DType dtype_for(const NamedVariable& member, const Array& array, Give what) noexcept {
  if (what == Give::kValues) return member.dtype();
  return what == Give::kGradient ? DType::kFloat32 : member.pulled_into(array);
}

// A tensor of PyTorch may move its memory: resize_(), share_memory_(), an offload.
std::uintptr_t address_of(nb::handle tensor) {
  static PyObject* const name = PyUnicode_InternFromString("data_ptr");
  return nb::cast<std::uintptr_t>(tensor.attr(nb::handle(name))());
}

void require_unmoved(const Pinned& pinned) {
  for (const auto& [tensor, address] : pinned.tensors)
    if (address_of(tensor) != address)
      throw nb::value_error("the memory of a tensor has moved since the arrays were pinned; pin them anew");
}

}  // namespace

Pinned pin(const Bundle& self, nb::handle given, Use use, const char* verb, Give what) {
  const bool writable = use == Use::kWrite;
  Pinned pinned;
  pinned.of = &self;
  pinned.is_writable = writable;
  const std::vector<nb::object> arrays = in_order(self, given);
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const NamedVariable& member = self.members[i];
    if (arrays[i].is_none() && !writable) continue;
    const std::string about = member.about(verb, "the array");
    Array array(arrays[i], use, about);
    array.require(dtype_for(member, array, what), member.shape, about);
    pinned.variables.push_back(self.variables[i]);
    pinned.may_convert = pinned.may_convert || (member.takes_gradients() && !member.has_floats());
    pinned.to.push_back(has_floats(array) ? array.as<float>() : std::span<float>());
    pinned.from.push_back(pinned.to.back());
    pinned.arrays.push_back(std::move(array));
  }
  return pinned;
}

Pinned keep_pinned(const nb::object& self, const nb::object& arrays, bool writable) {
  const Bundle& bundle = nb::cast<const Bundle&>(self);
  Pinned pinned = pin(bundle, arrays, writable ? Use::kWrite : Use::kReadLater, "pin", Give::kEither);
  pinned.given = nb::make_tuple(self, arrays);
  for (const nb::object& array : in_order(bundle, arrays))
    if (nb::hasattr(array, "data_ptr")) pinned.tensors.emplace_back(array, address_of(array));
  return pinned;
}

void check_pinned(const Bundle& self, const Pinned& pinned, bool writable) {
  if (pinned.of != &self) throw nb::value_error("these arrays were pinned for another bundle");
  if (writable && !pinned.is_writable)
    throw nb::type_error("these arrays were pinned for reading; pin them with writable=True");
  require_unmoved(pinned);
}

}  // namespace ps_shm::python
