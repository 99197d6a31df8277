#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "pinned.hpp"
#include "worker.hpp"

namespace ps_shm::python {
namespace {

using namespace nb::literals;

const NamedVariable& find(const Bundle& self, const std::string& name) {
  std::vector<std::string> names;
  for (const NamedVariable& one : self.members) {
    if (one.variable.name() == name) return one;
    names.push_back(one.variable.name());
  }
  fail_not_found("the bundle", "variable", name, names);
}

void require_gradients(const Bundle& self, const char* verb) {
  for (const NamedVariable& one : self.members)
    if (!one.takes_gradients())
      throw nb::type_error(fmt::format("{}: variable '{}' is of {}, which no gradient is for", verb,
                                       one.variable.name(), to_string(one.dtype()))
                               .c_str());
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
  with_pinned(self, out, true, "pull", Give::kEither, [&](const Pinned& arrays) {
    Worker& worker = self.rank().worker;
    if (consistent) return static_cast<void>(worker.pull_all(arrays.variables, arrays.to));
    for (std::size_t i = 0; i < arrays.variables.size(); ++i) {
      if (has_floats(arrays.arrays[i]))
        worker.pull(arrays.variables[i], arrays.to[i]);
      else
        worker.pull(arrays.variables[i], arrays.arrays[i].bytes());
    }
  });
  return out;
}

std::vector<std::size_t> pull_changed(const Bundle& self, Pinned& arrays) {
  check_pinned(self, arrays);
  arrays.since.resize(arrays.variables.size());
  std::vector<std::size_t> changed;
  const Turn turn(self.rank());
  Worker& worker = self.rank().worker;
  for (std::size_t i = 0; i < arrays.variables.size(); ++i) {
    if (!has_floats(arrays.arrays[i]))
      worker.pull(arrays.variables[i], arrays.arrays[i].bytes());
    else if (arrays.variables[i].dtype() != DType::kFloat32)
      worker.pull(arrays.variables[i], arrays.to[i]);
    else if (worker.pull_if_changed(arrays.variables[i], arrays.to[i], arrays.since[i]) == 0)
      continue;
    changed.push_back(i);
  }
  return changed;
}

void push(const Bundle& self, nb::handle gradients, Pinned* into) {
  require_gradients(self, "push");
  if (into != nullptr) require_floats(self, "push(into=...)"), check_pinned(self, *into);
  with_pinned(self, gradients, false, "push", Give::kGradient, [&](const Pinned& arrays) {
    Worker& worker = self.rank().worker;
    if (into != nullptr) {
      if (arrays.variables.size() != into->variables.size())
        throw nb::value_error("push(into=...) needs a gradient of each variable");
      into->since.resize(into->variables.size());
      worker.push(arrays.variables, arrays.from, into->to, into->since);
    } else if (!arrays.variables.empty()) {
      worker.push(arrays.variables, arrays.from);
    }
  });
}

// As push() with `into`, of gradients that the caller has checked: importing an array costs more than a short push.
void push_at(const Bundle& self, const std::vector<std::uintptr_t>& gradients, Pinned& into) {
  require_floats(self, "push_at");
  check_pinned(self, into);
  if (gradients.size() != into.to.size()) throw nb::value_error("push_at needs a gradient of each variable");
  std::vector<std::span<const float>> from;
  from.reserve(gradients.size());
  for (std::size_t i = 0; i < gradients.size(); ++i)
    from.emplace_back(reinterpret_cast<const float*>(gradients[i]), into.to[i].size());
  const Turn turn(self.rank());
  into.since.resize(into.variables.size());
  self.rank().worker.push(into.variables, from, into.to, into.since);
}

void add(const Bundle& self, nb::handle deltas) {
  with_pinned(self, deltas, false, "add", Give::kValues, [&](const Pinned& arrays) {
    Worker& worker = self.rank().worker;
    const PushGroup group = worker.group_pushes();
    for (std::size_t i = 0; i < arrays.variables.size(); ++i) {
      if (has_floats(arrays.arrays[i]))
        worker.add(arrays.variables[i], arrays.from[i]);
      else
        worker.add(arrays.variables[i], std::span<const std::byte>(arrays.arrays[i].bytes()));
    }
  });
}

void assign(const Bundle& self, nb::handle values, bool reset) {
  with_pinned(self, values, false, "assign", Give::kValues, [&](const Pinned& arrays) {
    Worker& worker = self.rank().worker;
    const Slots slots = reset ? Slots::kReset : Slots::kKeep;
    const PushGroup group = worker.group_pushes();
    for (std::size_t i = 0; i < arrays.variables.size(); ++i) {
      if (has_floats(arrays.arrays[i]))
        static_cast<void>(worker.assign(arrays.variables[i], arrays.from[i], slots));
      else
        static_cast<void>(
            worker.assign(arrays.variables[i], std::span<const std::byte>(arrays.arrays[i].bytes()), slots));
    }
  });
}

using BundleClass = nb::class_<Bundle>;

BundleClass make_class(nb::module_& module) {
  return BundleClass(module, "Bundle",
                     R"(Several variables of a job that are pulled and pushed in one call. Made by Worker.variables().

    bundle = worker.variables({"a": a, "b": b})     # arrays with the initial values
    values = bundle.pull()                          # a dict of new arrays
    bundle.pull(values, consistent=True)            # into the same arrays, at one moment
    bundle.push(gradients)                          # gradients: a dict of arrays with the same names

Arrays are given as a mapping from the variables' names, as a sequence in the bundle's order, or as a result of pin().
Each variable needs one; for push(), add() and assign() None stands for a variable that is left alone. What an array
may be, and the meaning of Progress, is described in help(ps_shm.Variable). len(bundle) is the number of variables.

All methods that take arrays raise:
    TypeError: an array has another dtype, is not row-major, is on another device, or is read-only where it is
        written.
    ValueError: an array is missing or superfluous or has the wrong shape, or the arrays were pinned for another
        bundle.
    Error: the worker has left, or the object belongs to the parent of a forked process (INVALID_STATE).)");
}

void add_members(BundleClass& bundle) {
  bundle
      .def_prop_ro(
          "names",
          [](const Bundle& self) {
            std::vector<std::string> names;
            for (const NamedVariable& one : self.members) names.push_back(one.variable.name());
            return names;
          },
          "The names of the variables, in the bundle's order.")
      .def("__len__", [](const Bundle& self) { return self.members.size(); })
      .def("__repr__",
           [](const Bundle& self) {
             return fmt::format("<bundle of {} variables of {}>", self.members.size(), self.rank().what());
           })
      .def("__getitem__", &find, "name"_a, "Returns the Variable of that name. Raises NotFound if the bundle has none.")
      .def(
          "pin", [](nb::object self, nb::object arrays, bool writable) { return keep_pinned(self, arrays, writable); },
          "arrays"_a, nb::kw_only(), "writable"_a = true,
          nb::sig("def pin(self, arrays: collections.abc.Mapping[str, Array | None] | collections.abc.Sequence[Array | "
                  "None], *, writable: bool = True) -> Pinned"),
          R"(Checks the arrays once and returns a Pinned, which stands for them in the other methods.

Those do not check them again. A Pinned refers to the memory that the arrays have now, and keeps it alive. If a tensor of
PyTorch moves its memory, as resize_() and share_memory_() do, they raise ValueError: pin the arrays anew.

Args:
    arrays: a mapping or a sequence with an array for each variable. For a variable of bfloat16 it may be of float32:
        then it can only be pulled into, or be a gradient.
    writable: whether pull() may write them. False: the arrays may be read-only or None, and pull() raises TypeError.)");
}

void add_pull(BundleClass& bundle) {
  bundle
      .def("pull", &pull, "out"_a = nb::none(), nb::kw_only(), "consistent"_a = false,
           nb::sig("def pull(self, out: collections.abc.Mapping[str, Array] | collections.abc.Sequence[Array] | Pinned "
                   "| None = None, *, consistent: bool = False) -> typing.Any"),
           R"(Copies the current values of all variables and returns what holds them.

Args:
    out: the arrays to copy into, which are returned as they were given; those for bfloat16 may be of float32. None: a
        new dict of NumPy arrays by name.
    consistent: False: as Variable.pull() for one variable after the other. True: as one consistent state, that is,
        the values that the variables had at one moment; it never sees part of another worker's push. It is meant for
        variables that are small compared to the pushes: if they never pause for as long as a copy takes, it takes a
        snapshot. All variables must be of float32. In-place ones must have one element and no optimizer state.

Raises:
    TypeError: `consistent` is True and a variable is not of float32.
    Error: with `consistent`, a variable does not qualify (INVALID_ARGUMENT), a worker is stopped in the middle of a
        push (UNAVAILABLE), or /dev/shm is full (NO_SPACE).
    Timeout: another snapshot is not released.

Progress: lock-free. consistent=True: at most some fifty lock-free copies, then it blocks as a snapshot does, on
another snapshot and on the pushes under way.)")
      .def("pull_changed", &pull_changed, "arrays"_a, nb::sig("def pull_changed(self, arrays: Pinned) -> list[int]"),
           R"(Copies only what has changed since the last such call, and returns the places of the variables concerned.

An unchanged chunk of a variable costs one load. A place is a number in the bundle's order. Variables that are not of
float32 are always copied.

Args:
    arrays: a result of pin(). Its arrays must still hold what the last such call left there; the first call copies
        everything.

Raises:
    Error: a variable is in-place and has more than one element (INVALID_ARGUMENT).

Progress: lock-free.)");
}

void add_pushes(BundleClass& bundle) {
  bundle
      .def("push", &push, "gradients"_a, nb::kw_only(), "into"_a = nb::none(),
           nb::sig("def push(self, gradients: collections.abc.Mapping[str, Array | None] | "
                   "collections.abc.Sequence[Array | None] | Pinned, *, into: Pinned | None = None) -> None"),
           R"(Pushes a gradient of each variable as one push, as Variable.push() does.

Snapshots and consistent pulls contain all of it or nothing. The job's `clip_norm` limits the global norm over these
gradients; in mode sync with `reduce` ordered, over all that this worker pushes in the step.

    bundle.push(gradients, into=pinned)             # pinned = bundle.pin(values)
    worker.step()
    bundle.pull_changed(pinned)                     # now `values` has the current values

Args:
    gradients: a float32 array for each variable.
    into: arrays that a pull_changed() after step() is to complete. In the modes async and ssp they get the values of each
        chunk as it is pushed, while it is in the cache: together the two calls copy as pull() does, but faster.

Raises:
    TypeError: a variable is of a type that takes no gradients; with `into`, it is not of float32, or `into` was pinned
        for reading.
    ValueError: with `into`, a gradient is missing.
    Error: as Variable.push(); with `into`, as pull_changed().

Progress: as Variable.push().)")
      .def("push_at", &push_at, "gradients"_a, "into"_a,
           nb::sig("def push_at(self, gradients: collections.abc.Sequence[int], into: Pinned) -> None"),
           R"(As push(..., into=into), for gradients at these addresses. For ps_shm.torch, which has checked them.

Args:
    gradients: for each variable, in the bundle's order, the address of its row-major float32 gradient, which stays valid
        during the call.
    into: as for push().

Progress: as Variable.push().)");
}

void add_changes(BundleClass& bundle) {
  bundle
      .def("add", &add, "deltas"_a,
           nb::sig("def add(self, deltas: collections.abc.Mapping[str, Array | None] | collections.abc.Sequence[Array "
                   "| None] | Pinned) -> None"),
           R"(Adds to each variable, bypassing the optimizer, as Variable.add() does.

Snapshots contain all of it or nothing.

Args:
    deltas: an array for each variable.

Raises:
    Error: as Variable.add().

Progress: as Variable.add().)")
      .def("assign", &assign, "values"_a, nb::kw_only(), "reset"_a = false,
           nb::sig("def assign(self, values: collections.abc.Mapping[str, Array | None] | "
                   "collections.abc.Sequence[Array | None] | Pinned, *, reset: bool = False) -> None"),
           R"(Sets the values of each variable, bypassing the optimizer, as Variable.assign() does.

Snapshots contain all of it or nothing.

Args:
    values: an array for each variable.
    reset: whether the optimizer's state begins anew, as for Variable.assign().

Raises:
    Error: as Variable.assign().

Progress: as Variable.assign().)");
}

void add_gradients(BundleClass& bundle) {
  bundle
      .def(
          "gradients",
          [](const Bundle& self) {
            require_gradients(self, "gradients");
            nb::dict arrays;
            for (const NamedVariable& one : self.members) {
              std::span<float> gradient;
              {
                const Turn turn(*one.rank);
                gradient = one.rank->worker.gradient(one.variable);
              }
              arrays[nb::cast(one.variable.name())] =
                  as_array(gradient.data(), DType::kFloat32, one.shape, keep(one.rank), Use::kWrite);
            }
            return arrays;
          },
          nb::sig("def gradients(self) -> dict[str, numpy.typing.NDArray[numpy.float32]]"),
          R"(Returns a dict with an array for each variable's gradient by name, as Variable.gradient() does.

Raises:
    TypeError: a variable is of a type that takes no gradients.
    Error: as Variable.gradient().)")
      .def(
          "link",
          [](const Bundle& self, const std::vector<std::uintptr_t>& parameters,
             const std::vector<std::uintptr_t>& gradients, int device, const std::string& wire) {
            return make_link(self.members, self.variables, parameters, gradients, device, wire);
          },
          "parameters"_a, "gradients"_a, nb::kw_only(), "device"_a, "wire"_a = "float32",
          nb::sig(
              "def link(self, parameters: list[int], gradients: list[int], *, device: int, wire: str = 'float32') -> "
              "GpuLink"),
          R"(Returns a GpuLink that pulls the variables into device memory and pushes gradients from there.

ps_shm.torch.Optimizer uses it for a model on a GPU. A worker has at most one link at a time.

Args:
    parameters: for each variable, in the bundle's order, the address of device memory for its values: one float32 for
        each element, aligned to 256 bytes. The memory must outlive the link.
    gradients: the same for the gradients.
    device: CUDA's number of the GPU.
    wire: the transfer dtype, 'float32', 'bfloat16' (of values of more than 2 MiB, and of gradients) or 'bfloat16-push' (of gradients
        only). Device memory is of float32 in any case.

Raises:
    ValueError: an address is not aligned, or wire is unknown.
    Error: there is no such GPU, or this build has no CUDA (DEVICE); the worker has a link already or uses another GPU
        (INVALID_STATE); the lists differ in length, a variable is not of float32, or the elements of an in-place
        variable do not lie side by side (INVALID_ARGUMENT).)");
}

}  // namespace

nb::object make_bundle(std::vector<NamedVariable> variables) {
  if (variables.empty()) throw nb::value_error("a bundle needs a variable at least");
  Bundle bundle{.members = std::move(variables), .variables = {}};
  for (const NamedVariable& one : bundle.members) bundle.variables.push_back(one.variable);
  return nb::cast(std::move(bundle));
}

void add_bundle(nb::module_& module) {
  module.def(
      "same_bytes",
      [](nb::handle first, nb::handle second) {
        const Array one(first, Use::kRead, "the first array"), other(second, Use::kRead, "the second array");
        return one.bytes().size() == other.bytes().size() &&
               std::memcmp(one.bytes().data(), other.bytes().data(), one.bytes().size()) == 0;
      },
      "first"_a, "second"_a, nb::sig("def same_bytes(first: Array, second: Array) -> bool"),
      "Returns whether the elements of two arrays have the same bytes. For ps_shm.torch.");
  nb::class_<Pinned>(module, "Pinned",
                     "Arrays for the variables of a bundle that have been checked once. Made by Bundle.pin().")
      .def("__repr__", [](const Pinned& self) { return fmt::format("<{} pinned arrays>", self.arrays.size()); });
  BundleClass bundle = make_class(module);
  add_members(bundle);
  add_pull(bundle);
  add_pushes(bundle);
  add_changes(bundle);
  add_gradients(bundle);
}

}  // namespace ps_shm::python
