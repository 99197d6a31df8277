#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "worker.hpp"

namespace ps::python {
namespace {

using namespace nb::literals;

// The elements for a variable of one element that is given as a Python number.
bool is_number(const NamedVariable& self, nb::handle given) {
  return self.has_floats() && self.variable.element_count() == 1 &&
         (PyFloat_Check(given.ptr()) || PyLong_Check(given.ptr()));
}

Array checked(const NamedVariable& self, nb::handle given, Use use, const char* verb, const char* what) {
  if (use == Use::kRead && nb::isinstance<nb::float_>(given))
    throw nb::type_error(
        self.about(verb, what).append(" is a number, and it has several elements; pass an array").c_str());
  try {
    Array array(given, use, what);
    array.require(self.dtype(), self.shape, what);
    return array;
  } catch (const nb::builtin_exception& error) {  // the name costs as much as a small push: only now
    throw nb::builtin_exception(
        error.type(), fmt::format("{} of variable '{}': {}", verb, self.variable.name(), error.what()).c_str());
  }
}

nb::object pull(const NamedVariable& self, nb::object out) {
  if (out.is_none()) out = new_array(self.dtype(), self.shape);
  const Array array = checked(self, out, Use::kWrite, "pull", "out");
  const Turn turn(*self.rank);
  if (self.has_floats())
    self.rank->worker.pull(self.variable, array.as<float>());
  else
    self.rank->worker.pull(self.variable, array.bytes());
  return out;
}

nb::object pull_average(const NamedVariable& self, nb::object out) {
  if (out.is_none()) out = new_array(DType::kFloat32, self.shape);
  const Array array = checked(self, out, Use::kWrite, "pull_average", "out");
  const Turn turn(*self.rank);
  self.rank->worker.pull_average(self.variable, array.as<float>());
  return out;
}

void require_floats(const NamedVariable& self, const char* verb) {
  if (self.has_floats()) return;
  throw nb::type_error(
      fmt::format("{} of variable '{}': it is of {}, which no gradient is for; add() and assign() change it", verb,
                  self.variable.name(), to_string(self.dtype()))
          .c_str());
}

void push(const NamedVariable& self, nb::handle gradient) {
  require_floats(self, "push");
  if (is_number(self, gradient)) {
    const auto value = nb::cast<float>(gradient);
    const Turn turn(*self.rank);
    return self.rank->worker.push(self.variable, value);
  }
  const Array array = checked(self, gradient, Use::kRead, "push", "the gradient");
  const Turn turn(*self.rank);
  self.rank->worker.push(self.variable, array.as<const float>());
}

void add(const NamedVariable& self, nb::handle delta) {
  if (is_number(self, delta)) {
    const auto value = nb::cast<float>(delta);
    const Turn turn(*self.rank);
    return self.rank->worker.add(self.variable, value);
  }
  const Array array = checked(self, delta, Use::kRead, "add", "the delta");
  const Turn turn(*self.rank);
  if (self.has_floats())
    self.rank->worker.add(self.variable, array.as<const float>());
  else
    self.rank->worker.add(self.variable, std::span<const std::byte>(array.bytes()));
}

void assign(const NamedVariable& self, nb::handle values, bool reset) {
  const Slots slots = reset ? Slots::kReset : Slots::kKeep;
  if (is_number(self, values)) {
    const auto value = nb::cast<float>(values);
    const Turn turn(*self.rank);
    static_cast<void>(self.rank->worker.assign(self.variable, value, slots));
    return;
  }
  const Array array = checked(self, values, Use::kRead, "assign", "the array");
  const Turn turn(*self.rank);
  if (self.has_floats())
    static_cast<void>(self.rank->worker.assign(self.variable, array.as<const float>(), slots));
  else
    static_cast<void>(self.rank->worker.assign(self.variable, std::span<const std::byte>(array.bytes()), slots));
}

nb::object gradient(const NamedVariable& self) {
  require_floats(self, "gradient");
  std::span<float> room;
  {
    const Turn turn(*self.rank);
    room = self.rank->worker.gradient(self.variable);
  }
  return as_array(room.data(), DType::kFloat32, self.shape, keep(self.rank), Use::kWrite);
}

nb::object view(const NamedVariable& self) {
  self.rank->check();
  return as_array(self.variable.view().data(), DType::kFloat32, self.shape, keep(self.rank), Use::kRead);
}

// Row numbers as they were given: 32 or 64 bits. A negative one is out of range.
struct Ids {
  Ids(const NamedVariable& self, nb::handle given, const char* verb)
      : array(given, Use::kRead, fmt::format("{} of variable '{}': ids", verb, self.variable.name())) {
    const DType type = array.dtype();
    is_wide = type == DType::kInt64 || type == DType::kUint64;
    if (!is_wide && type != DType::kInt32 && type != DType::kUint32)
      array.require_type(DType::kInt64, fmt::format("{} of variable '{}': ids", verb, self.variable.name()));
  }
  // Calls `use` with the span that it is.
  template <class Use>
  void give_to(Use&& use) const {
    if (is_wide)
      use(array.as<const std::uint64_t>());
    else
      use(array.as<const std::uint32_t>());
  }

  Array array;
  bool is_wide = false;
};

Shape shape_of_rows(const NamedVariable& self, const Ids& ids) {
  Shape shape = ids.array.shape();
  if (!self.shape.empty()) shape.insert(shape.end(), self.shape.begin() + 1, self.shape.end());
  return shape;
}

Array rows(const NamedVariable& self, const Ids& ids, nb::handle given, Use use, const char* verb, const char* what) {
  const std::string about = self.about(verb, what);
  Array array(given, use, about);
  array.require(DType::kFloat32, shape_of_rows(self, ids), about);
  return array;
}

nb::object pull_rows(const NamedVariable& self, nb::handle given, nb::object out) {
  const Ids ids(self, given, "pull_rows");
  if (out.is_none()) out = new_array(DType::kFloat32, shape_of_rows(self, ids));
  const Array array = rows(self, ids, out, Use::kWrite, "pull_rows", "out");
  const Turn turn(*self.rank);
  ids.give_to([&](auto span) { self.rank->worker.pull_rows(self.variable, span, array.as<float>()); });
  return out;
}

void push_rows(const NamedVariable& self, nb::handle given, nb::handle gradients) {
  const Ids ids(self, given, "push_rows");
  const Array array = rows(self, ids, gradients, Use::kRead, "push_rows", "the gradients");
  const Turn turn(*self.rank);
  ids.give_to([&](auto span) { self.rank->worker.push_rows(self.variable, span, array.as<const float>()); });
}

void add_rows(const NamedVariable& self, nb::handle given, nb::handle deltas) {
  const Ids ids(self, given, "add_rows");
  const Array array = rows(self, ids, deltas, Use::kRead, "add_rows", "the deltas");
  const Turn turn(*self.rank);
  ids.give_to([&](auto span) { self.rank->worker.add_rows(self.variable, span, array.as<const float>()); });
}

void assign_rows(const NamedVariable& self, nb::handle given, nb::handle values, bool reset) {
  const Ids ids(self, given, "assign_rows");
  const Array array = rows(self, ids, values, Use::kRead, "assign_rows", "the values");
  const Turn turn(*self.rank);
  ids.give_to([&](auto span) {
    self.rank->worker.assign_rows(self.variable, span, array.as<const float>(), reset ? Slots::kReset : Slots::kKeep);
  });
}

void prefetch_rows(const NamedVariable& self, nb::handle given) {
  const Ids ids(self, given, "prefetch_rows");
  const Turn turn(*self.rank);
  ids.give_to([&](auto span) { self.rank->worker.prefetch_rows(self.variable, span); });
}

}  // namespace

std::string NamedVariable::about(const char* verb, const char* what) const {
  return fmt::format("{} of variable '{}': {}", verb, variable.name(), what);
}

nb::capsule keep(const SharedRank& rank) {
  return nb::capsule(new SharedRank(rank), [](void* kept) noexcept { delete static_cast<SharedRank*>(kept); });
}

void add_variable(nb::module_& module) {
  nb::class_<NamedVariable>(module, "Variable", R"(A named array of the job, by which a worker pulls and pushes.

Arrays are NumPy's, PyTorch's on the CPU, or any other with the buffer protocol or DLPack: row-major, of the variable's
shape or flat, of its dtype. Nothing is converted or copied on the way; a TypeError says what to pass instead.)")
      .def_prop_ro(
          "name", [](const NamedVariable& self) { return self.variable.name(); }, "Its name.")
      .def_prop_ro(
          "dtype", [](const NamedVariable& self) { return std::string(to_string(self.dtype())); },
          "The type of its elements, as NumPy names it.")
      .def_prop_ro(
          "shape",
          [](const NamedVariable& self) {
            nb::list extents;
            for (const std::uint64_t extent : self.shape) extents.append(extent);
            return nb::tuple(extents);
          },
          nb::sig("def shape(self) -> tuple[int, ...]"), "Its extents.")
      .def_prop_ro(
          "size", [](const NamedVariable& self) { return self.variable.element_count(); }, "How many elements it has.")
      .def_prop_ro(
          "layout", [](const NamedVariable& self) { return std::string(to_string(self.variable.layout())); },
          "versioned or inplace.")
      .def("pull", &pull, "out"_a = nb::none(), nb::sig("def pull(self, out: typing.Any = None) -> typing.Any"),
           "Copies the values into `out`, and returns it; without one into a new NumPy array. Each chunk is of one "
           "version.")
      .def("pull_average", &pull_average, "out"_a = nb::none(),
           nb::sig("def pull_average(self, out: typing.Any = None) -> typing.Any"),
           "The same for the moving average of the values. Raises Error where the job keeps none (`ema`).")
      .def("push", &push, "gradient"_a.none(), nb::sig("def push(self, gradient: typing.Any) -> None"),
           "Applies the gradient by the variable's rule, exactly once: at once, or in sync mode by step(). A number "
           "does "
           "for a variable of one element.")
      .def("add", &add, "delta"_a.none(), nb::sig("def add(self, delta: typing.Any) -> None"),
           "Adds to the values, exactly once, whatever the rule; the optimizer's state stays.")
      .def("assign", &assign, "values"_a.none(), nb::kw_only(), "reset"_a = false,
           nb::sig("def assign(self, values: typing.Any, *, reset: bool = False) -> None"),
           "Sets the values. `reset`: the optimizer's state begins anew.")
      .def(
          "gradient", &gradient, nb::sig("def gradient(self) -> numpy.typing.NDArray[numpy.float32]"),
          "Room for a gradient, always the same. In sync mode it lies in shared memory, and pushing it copies nothing.")
      .def("view", &view, nb::sig("def view(self) -> numpy.typing.NDArray[numpy.float32]"),
           "The values where they lie, read-only, while others change them. For layout inplace, rule add or sgd.")
      .def("pull_rows", &pull_rows, "ids"_a.none(), "out"_a = nb::none(),
           nb::sig("def pull_rows(self, ids: typing.Any, out: typing.Any = None) -> typing.Any"),
           "Copies rows ids[...] into `out` of shape ids.shape + shape[1:], or a new NumPy array. `ids` are of int64, "
           "int32, uint64 or uint32, in any order. For layout inplace.")
      .def("push_rows", &push_rows, "ids"_a.none(), "gradients"_a,
           nb::sig("def push_rows(self, ids: typing.Any, gradients: typing.Any) -> None"),
           "Applies gradients[i] to row ids[i]; those of repeated ids are summed up first.")
      .def("add_rows", &add_rows, "ids"_a.none(), "deltas"_a,
           nb::sig("def add_rows(self, ids: typing.Any, deltas: typing.Any) -> None"), "add() for rows.")
      .def("assign_rows", &assign_rows, "ids"_a.none(), "values"_a, nb::kw_only(), "reset"_a = false,
           nb::sig("def assign_rows(self, ids: typing.Any, values: typing.Any, *, reset: bool = False) -> None"),
           "assign() for rows.")
      .def("prefetch_rows", &prefetch_rows, "ids"_a.none(), nb::sig("def prefetch_rows(self, ids: typing.Any) -> None"),
           "Asks for the memory of these rows, for a pull and a push of them soon.")
      .def("__repr__", [](const NamedVariable& self) {
        return fmt::format("<Variable '{}' {} {}>", self.variable.name(), to_text(self.shape), to_string(self.dtype()));
      });
}

}  // namespace ps::python
