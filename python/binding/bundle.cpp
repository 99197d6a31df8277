#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "worker.hpp"

namespace ps::python {
namespace {

using namespace nb::literals;

struct Bundle {
  std::vector<NamedVariable> members;
  std::vector<Variable> variables;

  Rank& rank() const { return *members.front().rank; }
};

// Arrays of a bundle, looked at once.
struct Pinned {
  Pinned() = default;
  Pinned(Pinned&&) = default;

  const void* of = nullptr;  // which bundle
  std::vector<Array> arrays;
  std::vector<std::span<float>> to;
  std::vector<std::span<const float>> from;
  bool is_writable = true;
  nb::object given;  // keeps the bundle, too
};

const NamedVariable& find(const Bundle& self, const std::string& name) {
  for (const NamedVariable& one : self.members)
    if (one.variable.name() == name) return one;
  throw nb::key_error(name.c_str());
}

// The arrays in the bundle's order: of a mapping by name, else of a sequence.
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

Pinned pin(const Bundle& self, nb::handle given, bool writable, const char* verb) {
  Pinned pinned;
  pinned.of = &self;
  pinned.is_writable = writable;
  const std::vector<nb::object> arrays = in_order(self, given);
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const NamedVariable& member = self.members[i];
    const std::string about = member.about(verb, "the array");
    Array array(arrays[i], writable ? Use::kWrite : Use::kRead, about);
    array.require(member.dtype(), member.shape, about);
    const bool has_floats = member.has_floats();
    pinned.to.push_back(has_floats ? array.as<float>() : std::span<float>());
    pinned.from.push_back(pinned.to.back());
    pinned.arrays.push_back(std::move(array));
  }
  return pinned;
}

// Calls `use` with what was pinned before, or is for this call.
template <class Use>
void with_pinned(const Bundle& self, nb::handle given, bool writable, const char* verb, Use&& use) {
  Pinned* pinned = nullptr;
  if (!nb::try_cast(given, pinned)) {
    const Pinned now = pin(self, given, writable, verb);
    const Turn turn(self.rank());
    return use(now);
  }
  if (pinned->of != &self) throw nb::value_error("these arrays were pinned for another bundle");
  if (writable && !pinned->is_writable)
    throw nb::type_error("these arrays were pinned for reading; pin them with writable=True");
  const Turn turn(self.rank());
  use(*pinned);
}

void require_floats(const Bundle& self, const char* verb) {
  for (const NamedVariable& one : self.members)
    if (!one.has_floats())
      throw nb::type_error(fmt::format("{}: variable '{}' is of {}, and all need to be of float32", verb,
                                       one.variable.name(), to_string(one.dtype()))
                               .c_str());
}

nb::object pull(const Bundle& self, nb::object out, bool consistent) {
  if (consistent) require_floats(self, "pull(consistent=True)");
  if (out.is_none()) {
    nb::dict made;
    for (const NamedVariable& one : self.members)
      made[nb::cast(one.variable.name())] = new_array(one.dtype(), one.shape);
    out = std::move(made);
  }
  with_pinned(self, out, true, "pull", [&](const Pinned& arrays) {
    Worker& worker = self.rank().worker;
    if (consistent) return static_cast<void>(worker.pull_all(self.variables, arrays.to));
    for (std::size_t i = 0; i < self.members.size(); ++i) {
      if (self.members[i].has_floats())
        worker.pull(self.variables[i], arrays.to[i]);
      else
        worker.pull(self.variables[i], arrays.arrays[i].bytes());
    }
  });
  return out;
}

void push(const Bundle& self, nb::handle gradients) {
  require_floats(self, "push");
  with_pinned(self, gradients, false, "push",
              [&](const Pinned& arrays) { self.rank().worker.push(self.variables, arrays.from); });
}

void add(const Bundle& self, nb::handle deltas) {
  with_pinned(self, deltas, false, "add", [&](const Pinned& arrays) {
    Worker& worker = self.rank().worker;
    const PushGroup group = worker.group_pushes();
    for (std::size_t i = 0; i < self.members.size(); ++i) {
      if (self.members[i].has_floats())
        worker.add(self.variables[i], arrays.from[i]);
      else
        worker.add(self.variables[i], std::span<const std::byte>(arrays.arrays[i].bytes()));
    }
  });
}

void assign(const Bundle& self, nb::handle values, bool reset) {
  with_pinned(self, values, false, "assign", [&](const Pinned& arrays) {
    Worker& worker = self.rank().worker;
    const Slots slots = reset ? Slots::kReset : Slots::kKeep;
    const PushGroup group = worker.group_pushes();
    for (std::size_t i = 0; i < self.members.size(); ++i) {
      if (self.members[i].has_floats())
        static_cast<void>(worker.assign(self.variables[i], arrays.from[i], slots));
      else
        static_cast<void>(
            worker.assign(self.variables[i], std::span<const std::byte>(arrays.arrays[i].bytes()), slots));
    }
  });
}

}  // namespace

nb::object make_bundle(std::vector<NamedVariable> variables) {
  if (variables.empty()) throw nb::value_error("a bundle needs a variable at least");
  Bundle bundle{.members = std::move(variables), .variables = {}};
  for (const NamedVariable& one : bundle.members) bundle.variables.push_back(one.variable);
  return nb::cast(std::move(bundle));
}

void add_bundle(nb::module_& module) {
  nb::class_<Pinned>(module, "Pinned", "Arrays of a bundle that were checked once: see Bundle.pin().");
  nb::class_<Bundle>(module, "Bundle", R"(Several variables that are pulled and pushed in one call.

Arrays are given as a mapping by the variables' names, as a sequence in their order, or as pin() gives them.)")
      .def_prop_ro(
          "names",
          [](const Bundle& self) {
            std::vector<std::string> names;
            for (const NamedVariable& one : self.members) names.push_back(one.variable.name());
            return names;
          },
          "The variables' names, in their order.")
      .def("__len__", [](const Bundle& self) { return self.members.size(); })
      .def("__getitem__", &find, "name"_a, "The variable of that name.")
      .def(
          "pin",
          [](nb::object self, nb::object arrays, bool writable) {
            Pinned pinned = pin(nb::cast<const Bundle&>(self), arrays, writable, "pin");
            pinned.given = nb::make_tuple(self, arrays);
            return pinned;
          },
          "arrays"_a, nb::kw_only(), "writable"_a = true,
          nb::sig("def pin(self, arrays: typing.Any, *, writable: bool = True) -> Pinned"),
          "Looks at the arrays once and for all. What is given for them goes to the memory that they have now.")
      .def(
          "pull", &pull, "out"_a = nb::none(), nb::kw_only(), "consistent"_a = false,
          nb::sig("def pull(self, out: typing.Any = None, *, consistent: bool = False) -> typing.Any"),
          "Copies the values into `out`, and returns it; without one into a new dict of NumPy arrays. `consistent`: as "
          "they were at one moment, with no push half in them.")
      .def("push", &push, "gradients"_a, nb::sig("def push(self, gradients: typing.Any) -> None"),
           "Pushes a gradient of each variable; `clip_norm` limits their norm together.")
      .def("add", &add, "deltas"_a, nb::sig("def add(self, deltas: typing.Any) -> None"), "Adds to each variable.")
      .def("assign", &assign, "values"_a, nb::kw_only(), "reset"_a = false,
           nb::sig("def assign(self, values: typing.Any, *, reset: bool = False) -> None"), "Sets each variable.")
      .def(
          "gradients",
          [](const Bundle& self) {
            require_floats(self, "gradients");
            nb::dict rooms;
            for (const NamedVariable& one : self.members) {
              std::span<float> room;
              {
                const Turn turn(*one.rank);
                room = one.rank->worker.gradient(one.variable);
              }
              rooms[nb::cast(one.variable.name())] =
                  as_array(room.data(), DType::kFloat32, one.shape, keep(one.rank), Use::kWrite);
            }
            return rooms;
          },
          nb::sig("def gradients(self) -> dict[str, numpy.typing.NDArray[numpy.float32]]"),
          "Room for a gradient of each, as Variable.gradient() gives it.")
      .def(
          "link",
          [](const Bundle& self, const std::vector<std::uintptr_t>& parameters,
             const std::vector<std::uintptr_t>& gradients,
             int device) { return make_link(self.members, self.variables, parameters, gradients, device); },
          "parameters"_a, "gradients"_a, nb::kw_only(), "device"_a,
          nb::sig("def link(self, parameters: list[int], gradients: list[int], *, device: int) -> GpuLink"),
          "A way to addresses in a GPU's memory, as ps_shm.torch.Optimizer makes one. Raises Error where there is no "
          "such "
          "GPU.");
}

}  // namespace ps::python
