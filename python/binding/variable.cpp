#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "ps_shm/errors.hpp"
#include "worker.hpp"

namespace ps_shm::python {
namespace {

using namespace nb::literals;

// Whether a Python number is given for a float32 variable of one element.
bool is_number(const NamedVariable& self, nb::handle given) {
  return self.has_floats() && self.variable.element_count() == 1 &&
         (PyFloat_Check(given.ptr()) || PyLong_Check(given.ptr()));
}

// `dtype_for`: returns the dtype that the array must have.
template <class DTypeFor>
Array checked(const NamedVariable& self, nb::handle given, Use use, const char* verb, const char* what,
              DTypeFor&& dtype_for) {
  if (use == Use::kRead && nb::isinstance<nb::float_>(given))
    throw nb::type_error(self.about(verb, what).append(" is a number; pass an array of its dtype and shape").c_str());
  try {
    Array array(given, use, what);
    array.require(dtype_for(array), self.shape, what);
    return array;
  } catch (const nb::builtin_exception& error) {  // naming it takes as long as a small push
    throw nb::builtin_exception(
        error.type(), fmt::format("{} of variable '{}': {}", verb, self.variable.name(), error.what()).c_str());
  }
}

Array checked(const NamedVariable& self, nb::handle given, Use use, const char* verb, const char* what) {
  return checked(self, given, use, verb, what, [&](const Array&) { return self.dtype(); });
}

DType is_float32(const Array&) noexcept { return DType::kFloat32; }

nb::object pull(const NamedVariable& self, nb::object out) {
  if (out.is_none()) out = new_array(self.dtype(), self.shape);
  const Array array =
      checked(self, out, Use::kWrite, "pull", "out", [&](const Array& given) { return self.pulled_into(given); });
  const Turn turn(*self.rank);
  if (array.dtype() == DType::kFloat32)
    self.rank->worker.pull(self.variable, array.as<float>());
  else
    self.rank->worker.pull(self.variable, array.bytes());
  return out;
}

nb::object pull_average(const NamedVariable& self, nb::object out) {
  if (out.is_none()) out = new_array(DType::kFloat32, self.shape);
  const Array array = checked(self, out, Use::kWrite, "pull_average", "out", is_float32);
  const Turn turn(*self.rank);
  self.rank->worker.pull_average(self.variable, array.as<float>());
  return out;
}

void require_gradients(const NamedVariable& self, const char* verb) {
  if (self.takes_gradients()) return;
  throw nb::type_error(
      fmt::format("{} of variable '{}': it is of {}, which no gradient is for; add() and assign() change it", verb,
                  self.variable.name(), to_string(self.dtype()))
          .c_str());
}

void push(const NamedVariable& self, nb::handle gradient) {
  require_gradients(self, "push");
  if (is_number(self, gradient)) {
    const auto value = nb::cast<float>(gradient);
    const Turn turn(*self.rank);
    return self.rank->worker.push(self.variable, value);
  }
  const Array array = checked(self, gradient, Use::kRead, "push", "the gradient", is_float32);
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
  require_gradients(self, "gradient");
  std::span<float> gradient;
  {
    const Turn turn(*self.rank);
    gradient = self.rank->worker.gradient(self.variable);
  }
  return as_array(gradient.data(), DType::kFloat32, self.shape, keep(self.rank), Use::kWrite);
}

nb::object view(const NamedVariable& self) {
  self.rank->check();
  return as_array(self.variable.view().data(), DType::kFloat32, self.shape, keep(self.rank), Use::kRead);
}

// Row ids as given, of 32 or 64 bits. A negative id is out of range.
struct Ids {
  Ids(const NamedVariable& self, nb::handle given, const char* verb)
      : array(given, Use::kRead, fmt::format("{} of variable '{}': ids", verb, self.variable.name())) {
    const DType type = array.dtype();
    is_wide = type == DType::kInt64 || type == DType::kUint64;
    if (!is_wide && type != DType::kInt32 && type != DType::kUint32)
      array.require_type(DType::kInt64, fmt::format("{} of variable '{}': ids", verb, self.variable.name()));
    if (type == DType::kInt32) refuse_negative(array.as<const std::int32_t>(), self, verb);
  }
  // Calls `use` with the ids as a span of their type.
  template <class Use>
  void give_to(Use&& use) const {
    if (is_wide)
      use(array.as<const std::uint64_t>());
    else
      use(array.as<const std::uint32_t>());
  }

  // The library takes ids of 32 bits as unsigned ones, so its message would have another number.
  static void refuse_negative(std::span<const std::int32_t> ids, const NamedVariable& self, const char* verb) {
    const auto found = std::find_if(ids.begin(), ids.end(), [](std::int32_t id) { return id < 0; });
    if (found != ids.end())
      throw Error(fmt::format("{} of variable '{}': id {} (number {} of {}) is out of range", verb,
                              self.variable.name(), *found, found - ids.begin(), ids.size()));
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

nb::class_<NamedVariable> add_facts(nb::module_& module) {
  nb::class_<NamedVariable> type(
      module, "Variable",
      R"(A named array that the workers of a job share, as one worker uses it. Made by Worker.variable().

    w = worker.variable("w", numpy.ones((100, 10), "float32"))
    values = w.pull()                           # a new array of shape (100, 10)
    w.push(gradient_at(values))                 # gradient_at: a function of your own

Arrays that are passed to its methods are NumPy arrays, PyTorch tensors on the CPU, or other objects with the buffer
protocol or DLPack. They must be row-major without gaps, have the variable's dtype, and have either the variable's
shape or one axis with as many elements. Nothing is converted, and no temporary copy is made.

All methods raise:
    TypeError: an array has another dtype, is not row-major, is on another device, or is read-only where it is
        written; the message says what to pass instead.
    ValueError: an array has the wrong shape.
    Error: the worker has left, or the object belongs to the parent of a forked process (INVALID_STATE).

Progress: a wait-free call takes a bounded number of steps of its own; a lock-free call may have to repeat its work,
but only because other calls have succeeded. This is about other processes: the calls of threads that share a worker
are serialised. In the modes async and ssp, calls that push, add or assign also block while a snapshot is
taken.)");
  type.def_prop_ro(
          "name", [](const NamedVariable& self) { return self.variable.name(); }, "The variable's name.")
      .def_prop_ro(
          "dtype", [](const NamedVariable& self) { return std::string(to_string(self.dtype())); },
          "The type of the elements, such as 'float32'.")
      .def_prop_ro(
          "shape",
          [](const NamedVariable& self) {
            nb::list extents;
            for (const std::uint64_t extent : self.shape) extents.append(extent);
            return nb::tuple(extents);
          },
          nb::sig("def shape(self) -> tuple[int, ...]"), "The extents of the axes; () for a scalar.")
      .def_prop_ro(
          "size", [](const NamedVariable& self) { return self.variable.element_count(); }, "The number of elements.")
      .def_prop_ro(
          "lr_scale", [](const NamedVariable& self) { return self.rank->check(), self.variable.lr_scale(); },
          "What the job's learning rate is multiplied by for this variable (set_factors()). Wait-free.")
      .def_prop_ro(
          "regularize", [](const NamedVariable& self) { return self.rank->check(), self.variable.regularize(); },
          "What the job's l2, l1 and weight_decay are multiplied by for it (set_factors()). Wait-free.")
      .def_prop_ro(
          "layout", [](const NamedVariable& self) { return std::string(to_string(self.variable.layout())); },
          "How the variable is stored. 'versioned': in chunks, each of which a push replaces as a whole. 'inplace': as "
          "elements that are updated where they lie, which pulling and pushing rows requires. 'single-writer': in "
          "chunks that "
          "the pushes of the job's only worker change where they lie.");
  return type;
}

void set_factors(const NamedVariable& self, float lr_scale, float regularize) {
  const Turn turn(*self.rank);
  self.rank->worker.set_factors(self.variable, lr_scale, regularize);
}

void add_pulls_and_pushes(nb::class_<NamedVariable>& type) {
  type.def("pull", &pull, "out"_a = nb::none(), nb::sig("def pull(self, out: Array | None = None) -> Array"),
           R"(Copies the current values and returns the array that holds them.

Each chunk is one version of that chunk, and each element of an in-place variable is whole. The copy as a whole is not
point-in-time: see Bundle.pull(consistent=True) and View.state().

Args:
    out: the array to copy into, which is returned. None: a new NumPy array of the variable's shape and dtype. (NumPy
        has no bfloat16; such a variable needs a float32 array, for which the values are converted exactly, a tensor of
        torch.bfloat16, or an array of ml_dtypes.bfloat16.)

Progress: lock-free.)")
      .def("pull_average", &pull_average, "out"_a = nb::none(),
           nb::sig("def pull_average(self, out: Array | None = None) -> Array"),
           R"(Copies the moving average of the values, as pull() copies the values, and returns the array.

Args:
    out: the float32 array to copy into. None: a new NumPy array.

Raises:
    Error: the job keeps no averages (its setting `ema`), or the variable's rule is not an optimizer.

Progress: lock-free.)")
      .def("push", &push, "gradient"_a.none(), nb::sig("def push(self, gradient: Array | float) -> None"),
           R"(Pushes a gradient, which the variable's update rule applies exactly once. Rule add adds it.

In the modes async and ssp it is applied at once. In mode sync, Worker.step() applies the mean of the workers'
gradients; several pushes of one variable in a step add up. In-place variables of a job with Hogwild! updates (its
setting `adds`) may lose updates.

Args:
    gradient: a float32 array. A number is accepted for a variable of one element.

Raises:
    TypeError: the variable is of a type that takes no gradients: neither float32 nor bfloat16.
    Error: /dev/shm is full (NO_SPACE), or, in mode sync, this worker has added to or assigned the variable in the
        same step, or a step() that has raised must be completed by another one first (INVALID_STATE).

Progress: lock-free in the modes async and ssp and with `reduce` atomic. Otherwise, in mode sync, wait-free, except
that the first push of a variable grows the worker's segment.)");
}

void add_changes(nb::class_<NamedVariable>& type) {
  type.def("set_factors", &set_factors, "lr_scale"_a, "regularize"_a,
           nb::sig("def set_factors(self, lr_scale: float, regularize: float) -> None"),
           R"(Changes both factors that the variable was declared with, for the pushes of all workers that begin later.

In mode sync the step of this worker's next gradient is the first with them. (Of a step that a quorum decides without
that gradient, some chunks may get the old ones.)

Args:
    lr_scale: multiplies the job's learning rate for this variable.
    regularize: multiplies the job's l2, l1 and weight_decay for it.

Raises:
    Error: a factor is negative or not finite, or the variable's rule is add or ftrl.

Progress: wait-free.)")
      .def("add", &add, "delta"_a.none(), nb::sig("def add(self, delta: Array | float) -> None"),
           R"(Adds to the values exactly once, bypassing the optimizer, whose state stays as it is.

It is meant for changes that no gradient describes, such as counters. (Rule ftrl, whose values are a function of its
state: the state is solved for.) In the modes async and ssp it is applied at once. In mode sync, Worker.step() applies
it after the step's gradients, in rank order; several adds in a step add up. In a job with Hogwild! updates, pushes to
an in-place variable may lose it.

Args:
    delta: an array of the variable's dtype, which may be float32, float64 or an integer type. Integers wrap around. A
        number is accepted for a float32 variable of one element.

Raises:
    Error: the dtype is bfloat16, float16 or bool, or, in mode sync, this worker has pushed or assigned the variable
        in the same step; otherwise as push().

Progress: lock-free in the modes async and ssp; in mode sync as push().)")
      .def("assign", &assign, "values"_a.none(), nb::kw_only(), "reset"_a = false,
           nb::sig("def assign(self, values: Array | float, *, reset: bool = False) -> None"),
           R"(Sets the values, bypassing the optimizer. It is meant for restores, target networks and tables.

In the modes async and ssp it is applied at once. Concurrent assigns may interleave chunk by chunk: of each chunk the
last one stays. In mode sync, Worker.step() applies it before the step's gradients, in rank order, so that the values
of the highest rank stay. A gradient that is pushed afterwards applies to the new values.

Args:
    values: an array of the variable's dtype. A number is accepted for a float32 variable of one element.
    reset: False: the optimizer's state is kept (rule ftrl: solved for), and a moving average is set to the values.
        True: the state begins anew, as when the variable was initialised.

Raises:
    Error: as add(), except that every dtype can be assigned.

Progress: lock-free in the modes async and ssp; in mode sync as push().)");
}

void add_direct_access(nb::class_<NamedVariable>& type) {
  type.def("gradient", &gradient, nb::sig("def gradient(self) -> numpy.typing.NDArray[numpy.float32]"),
           R"(Returns a writable float32 array for a gradient, which is the same memory at each call.

In mode sync with `reduce` ordered, the array of a variable that is not partitioned lies in shared memory, and pushing
it copies nothing. Each push of the variable stores its sum there, so write it only before the first one of a step. A
gradient pushed from there replaces what was pushed of the variable before in the same step. The memory stays valid as
long as the array exists, but not in a forked child.

Raises:
    TypeError: the variable is of a type that takes no gradients: neither float32 nor bfloat16.
    Error: /dev/shm or the memory is full (NO_SPACE).)")
      .def("view", &view, nb::sig("def view(self) -> numpy.typing.NDArray[numpy.float32]"),
           R"(Returns the values of an in-place variable in shared memory, as a read-only array without a copy.

Other processes change them meanwhile: each element is whole, but two elements may be from different moments. The
memory stays valid as long as the array exists, but not in a forked child.

Raises:
    Error: the layout is not inplace, the variable is partitioned, or its rule is neither add nor sgd.

Progress: wait-free.)");
}

void add_row_pulls_and_pushes(nb::class_<NamedVariable>& type) {
  type.def("pull_rows", &pull_rows, "ids"_a.none(), "out"_a = nb::none(),
           nb::sig("def pull_rows(self, ids: Array, out: Array | None = None) -> Array"),
           R"(Copies rows of an in-place float32 variable and returns the array that holds them.

Each element is whole; two elements may be from different moments.

Args:
    ids: the row numbers, an array of int64, int32, uint64 or uint32 of any shape. They may be in any order and may
        repeat.
    out: the float32 array to copy into, of shape ids.shape + self.shape[1:] or flat. None: a new NumPy array.

Raises:
    Error: the layout is not inplace, the variable has no axis, or an id is out of range (INVALID_ARGUMENT).

Progress: wait-free.)")
      .def("push_rows", &push_rows, "ids"_a.none(), "gradients"_a,
           nb::sig("def push_rows(self, ids: Array, gradients: Array) -> None"),
           R"(Applies gradients[i] to row ids[i] of an in-place variable by its update rule.

Gradients of repeated ids are summed first, so that each row changes once. Other rows and their optimizer state stay
as they are. The job's `clip_norm` limits the norm of all gradients of the call.

Args:
    ids: as for pull_rows().
    gradients: a float32 array of shape ids.shape + self.shape[1:] or flat.

Raises:
    Error: as pull_rows(), before anything is applied; also if the job scales learning rates by staleness and the rule
        is not add.

Progress: lock-free; wait-free in a job with Hogwild! updates, which may lose updates.)");
}

void add_row_changes(nb::class_<NamedVariable>& type) {
  type.def("add_rows", &add_rows, "ids"_a.none(), "deltas"_a,
           nb::sig("def add_rows(self, ids: Array, deltas: Array) -> None"),
           R"(Adds deltas[i] to row ids[i] of an in-place variable, as add() does.

Deltas of repeated ids are summed first. Each element is changed exactly once, also if the job uses Hogwild! updates.

Args:
    ids: as for pull_rows().
    deltas: a float32 array of shape ids.shape + self.shape[1:] or flat.

Raises:
    Error: as pull_rows(), before anything is changed.

Progress: lock-free.)")
      .def("assign_rows", &assign_rows, "ids"_a.none(), "values"_a, nb::kw_only(), "reset"_a = false,
           nb::sig("def assign_rows(self, ids: Array, values: Array, *, reset: bool = False) -> None"),
           R"(Sets row ids[i] of an in-place variable to values[i], as assign() does.

Of repeated ids the last values stay. Each element is set together with its state.

Args:
    ids: as for pull_rows().
    values: a float32 array of shape ids.shape + self.shape[1:] or flat.
    reset: whether the optimizer's state of these rows begins anew, as for assign().

Raises:
    Error: as pull_rows(), before anything is changed.

Progress: lock-free.)")
      .def("prefetch_rows", &prefetch_rows, "ids"_a.none(), nb::sig("def prefetch_rows(self, ids: Array) -> None"),
           R"(Prefetches the memory of these rows of an in-place variable, for a pull and a push of them soon.

Args:
    ids: as for pull_rows(). Ids out of range are skipped.

Progress: wait-free.)")
      .def("__repr__", [](const NamedVariable& self) {
        return fmt::format("<Variable '{}' {} {}>", self.variable.name(), to_text(self.shape), to_string(self.dtype()));
      });
}

}  // namespace

std::string NamedVariable::about(const char* verb, const char* what) const {
  return fmt::format("{} of variable '{}': {}", verb, variable.name(), what);
}

nb::capsule keep(const SharedRank& rank) {
  return nb::capsule(new SharedRank(rank), [](void* kept) noexcept { delete static_cast<SharedRank*>(kept); });
}

void add_variable(nb::module_& module) {
  nb::class_<NamedVariable> type = add_facts(module);
  add_pulls_and_pushes(type);
  add_changes(type);
  add_direct_access(type);
  add_row_pulls_and_pushes(type);
  add_row_changes(type);
}

}  // namespace ps_shm::python
