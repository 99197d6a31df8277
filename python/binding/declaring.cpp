// Worker.variable() and Worker.variables().
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <variant>

#include "config/setting.hpp"
#include "settings.hpp"
#include "update/bytes.hpp"
#include "update/dtypes.hpp"
#include "worker.hpp"

namespace ps_shm::python {
namespace {

using namespace nb::literals;

// A variable's initial values: an array, a number, or a function that fills an array.
struct Initial {
  explicit Initial(nb::handle given, const std::string& name) {
    if (given.is_none()) return;
    if (PyFloat_Check(given.ptr()) || PyLong_Check(given.ptr()))
      number = nb::cast<float>(given);
    else if (PyCallable_Check(given.ptr()) != 0 && !nb::hasattr(given, "__dlpack__"))
      function = nb::borrow(given);
    else
      array.emplace(given, Use::kRead, fmt::format("variable '{}': init", name));
  }

  // Called without the interpreter's lock.
  void fill(const VariableSpec& spec, std::span<float> out) const {
    if (array) {
      std::memcpy(out.data(), array->bytes().data(), array->bytes().size());
    } else if (function) {
      with_python([&] {
        const DType dtype = array_dtype(spec);
        const nb::object values = new_array(dtype, spec.shape);  // separate memory: the function may keep it
        const Array array(values, Use::kWrite, fmt::format("variable '{}': init", spec.name));
        std::fill(array.bytes().begin(), array.bytes().end(), std::byte{0});
        function(values);
        update::fill_bytes(bytes_of_values(spec, out), spec.dtype, dtype, [&](std::span<float> floats) {
          std::memcpy(floats.data(), array.bytes().data(), array.bytes().size());
        });
      });
    } else if (number) {
      update::fill_bytes(bytes_of_values(spec, out), spec.dtype, array_dtype(spec),
                         [&](std::span<float> floats) { std::fill(floats.begin(), floats.end(), *number); });
    }
  }

  // What functions fill: float32 also for bfloat16, to which it is rounded.
  static DType array_dtype(const VariableSpec& spec) noexcept {
    return update::takes_gradients(spec.dtype) ? DType::kFloat32 : spec.dtype;
  }
  static std::span<std::byte> bytes_of_values(const VariableSpec& spec, std::span<float> out) {
    return std::as_writable_bytes(out).first(spec.element_count() * bytes_of(spec.dtype));
  }

  std::optional<Array> array;
  std::optional<float> number;
  nb::object function;
};

// Nobody means float64, which NumPy makes of numbers without a dtype, for what is to be trained.
void warn_of_float64(const VariableSpec& spec, const std::optional<std::string>& rule) {
  if (spec.dtype != DType::kFloat64 || (rule && *rule == "add")) return;
  const std::string line = fmt::format(
      "variable '{}' is of float64, which takes no gradients; pass float32, or dtype='float64' if that is meant",
      spec.name);
  if (PyErr_WarnEx(PyExc_UserWarning, line.c_str(), 1) != 0) throw nb::python_error();
}

VariableSpec specify(const std::string& name, const Initial& init, nb::handle shape, nb::handle dtype,
                     const std::optional<std::string>& rule, const std::optional<std::string>& layout, float regularize,
                     float lr_scale) {
  VariableSpec spec{.name = name, .rule = {}, .layout = {}, .regularize = regularize, .lr_scale = lr_scale};
  if (!shape.is_none()) spec.shape = shape_of(shape, fmt::format("variable '{}': the shape", name));
  if (!dtype.is_none()) spec.dtype = dtype_of(dtype);
  if (init.array) {
    if (shape.is_none()) spec.shape = init.array->shape();
    if (dtype.is_none()) spec.dtype = init.array->dtype();
    init.array->require(spec.dtype, spec.shape, fmt::format("variable '{}': init", name));
  }
  if (init.number && !update::takes_gradients(spec.dtype))
    throw nb::type_error(
        fmt::format("variable '{}': a number is for float32 and bfloat16; pass init as an array", name).c_str());
  if (rule) config::call_for("rule", [&] { spec.rule = parse<UpdateRule>(*rule); });
  if (layout) config::call_for("layout", [&] { spec.layout = parse<Layout>(*layout); });
  return spec;
}

// A variable that another worker declares.
NamedVariable existing_variable(const WorkerHandle& self, const std::string& name, Limit wait) {
  std::optional<Variable> found;
  {
    const Turn turn(*self.rank);
    found = self.use().variable(name, limit(wait));
  }
  return {self.rank, *found, shape_in_job(self.use().config().job, name)};
}

nb::object variable(const WorkerHandle& self, const std::string& name, nb::object init, nb::object shape,
                    nb::object dtype, std::optional<std::string> rule, std::optional<std::string> layout,
                    float regularize, float lr_scale, Limit wait) {
  if (init.is_none() && shape.is_none()) return nb::cast(existing_variable(self, name, wait));
  const Initial initial(init, name);
  const VariableSpec spec = specify(name, initial, shape, dtype, rule, layout, regularize, lr_scale);
  if (dtype.is_none()) warn_of_float64(spec, rule);
  std::optional<Variable> made;
  {
    const Turn turn(*self.rank);
    made = self.use().variable(spec, [&](std::span<float> out) { initial.fill(spec, out); });
  }
  return nb::cast(NamedVariable{self.rank, *made, spec.shape});
}

// A name that is misspelt would leave the variable that is meant as it is.
void require_variables(nb::handle names, const nb::dict& arrays, const char* option) {
  if (nb::isinstance<nb::str>(names))
    throw nb::type_error(fmt::format("{}: pass a list of names, not a string", option).c_str());
  for (const nb::handle name : names)
    if (!arrays.contains(name))
      throw nb::value_error(fmt::format("{}: '{}' is not among the variables that are declared", option,
                                        nb::cast<std::string>(nb::str(name)))
                                .c_str());
}

nb::object variables(const WorkerHandle& self, std::variant<nb::dict, std::vector<std::string>> given,
                     std::optional<std::string> rule, std::optional<std::string> layout, nb::object regularize,
                     std::optional<nb::dict> lr_scale, Limit wait) {
  std::vector<NamedVariable> named;
  if (const auto* names = std::get_if<std::vector<std::string>>(&given)) {
    for (const std::string& name : *names) named.push_back(existing_variable(self, name, wait));
    return make_bundle(std::move(named));
  }
  const auto& arrays = std::get<nb::dict>(given);
  if (!PyBool_Check(regularize.ptr())) require_variables(regularize, arrays, "regularize");
  if (lr_scale) require_variables(*lr_scale, arrays, "lr_scale");
  const auto regularized = [&](nb::handle name) {
    if (PyBool_Check(regularize.ptr())) return nb::cast<bool>(regularize) ? 1.0F : 0.0F;
    if (!nb::cast<bool>(regularize.attr("__contains__")(name))) return 0.0F;
    return nb::isinstance<nb::dict>(regularize) ? nb::cast<float>(regularize[name]) : 1.0F;
  };
  std::vector<Initial> initials;
  std::vector<VariableSpec> specs;
  for (const auto& [key, array] : arrays) {
    const auto name = name_in(key);
    initials.emplace_back(array, name);
    if (!initials.back().array)
      throw nb::type_error(fmt::format("variable '{}': pass its first values as an array", name).c_str());
    const DType dtype = initials.back().array->dtype();
    const bool is_trained = update::takes_gradients(dtype);
    specs.push_back(specify(name, initials.back(), nb::none(), nb::none(), is_trained ? rule : std::nullopt,
                            is_trained ? layout : std::nullopt, is_trained ? regularized(key) : 0.0F,
                            lr_scale && lr_scale->contains(key) ? nb::cast<float>((*lr_scale)[key]) : 1.0F));
    warn_of_float64(specs.back(), rule);
  }
  std::vector<Variable> made;
  {
    const Turn turn(*self.rank);
    made = self.use().variables(specs, [&](std::size_t i, std::span<float> out) { initials[i].fill(specs[i], out); });
  }
  for (std::size_t i = 0; i < made.size(); ++i) named.push_back({self.rank, made[i], specs[i].shape});
  return make_bundle(std::move(named));
}

void add_variable_method(nb::class_<WorkerHandle>& type) {
  type.def("variable", &variable, "name"_a, "init"_a = nb::none(), nb::kw_only(), "shape"_a = nb::none(),
           "dtype"_a = nb::none(), "rule"_a = nb::none(), "layout"_a = nb::none(), "regularize"_a = 0.0F,
           "lr_scale"_a = 1.0F, "wait"_a.none() = 10.0,
           nb::sig("def variable(self, name: str, init: Array | float | "
                   "collections.abc.Callable[[numpy.typing.NDArray[typing.Any]], object] | None = None, *, shape: "
                   "int | collections.abc.Sequence[int] | None "
                   "= None, dtype: DType | None = None, rule: str | None = None, layout: str | None = None, "
                   "regularize: float "
                   "= 0.0, lr_scale: float = 1.0, wait: float | None = 10.0) -> Variable"),
           R"(Declares a variable and returns it. The first worker that declares the name creates the variable.

All workers must declare a variable alike. One worker initialises it; the others wait for that, and one of them takes
over if the initialiser dies. In a job that begins with a checkpoint, the values come from there instead.

    w = worker.variable("w", numpy.ones((100, 10), "float32"))
    table = worker.variable("table", shape=(1000, 8), layout="inplace", rule="adagrad")
    w = worker.variable("w")                    # as another worker declares it

Args:
    name: 1 to 127 characters of [A-Za-z0-9_.:/-].
    init: the initial values. An array also gives shape and dtype. A number, for float32 and bfloat16, is the value of
        every element. A function is called with a NumPy array of zeros, which it fills; every worker's function should
        produce the same values. For bfloat16 the array is of float32, and numbers are rounded to nearest. None: zeros
        if `shape` is given; otherwise the variable is one that another worker declares.
    shape: the extents of at most 8 axes, or the only one. None: the shape of the array `init`, otherwise () for a scalar.
    dtype: the type of the elements, such as "int64", numpy.int64 or torch.int64. None: the dtype of the array `init`,
        otherwise "float32". A float64 array without a dtype warns, because it takes no gradients.
        Gradients apply to float32 and bfloat16 only; a variable of another type has rule add and layout versioned.
        bfloat16 takes half the memory of float32. Its gradients are of float32, and each update rounds its results
        stochastically: on average nothing is lost. Its optimizer state is of float32; in place, where it lies beside
        each element, of bfloat16.
    rule: the update rule: add, sgd, momentum, nesterov, adagrad, rmsprop, adam, adamw, ftrl or rowwise_adagrad. None:
        the job's optimizer.
    layout: versioned, inplace or single-writer. None: the job's layout, or versioned for types that take no gradients.
    regularize: multiplies the job's l2, l1 and weight_decay for this variable. 0: they do not apply to it.
    lr_scale: multiplies the job's learning rate for this variable.
    wait: without `init` and `shape`, how many seconds to wait for another worker to declare the variable, and then to
        initialise it, in seconds. 0: not at all. None: no limit.

Raises:
    Error: the variable exists with another specification, or the checkpoint is of another model (INCOMPATIBLE); no
        worker has declared it in time (NOT_FOUND); the specification is invalid (INVALID_ARGUMENT); the job can have no
        more variables (EXHAUSTED); /dev/shm is full (NO_SPACE).
    Timeout: it was not initialised in time.
    JobFinished: the job was ended.
    TypeError, ValueError: `init` does not fit `shape` and `dtype`, or there is no such dtype.
    Exceptions of the function `init` propagate, and the next worker initialises the variable.

Progress: declaring is lock-free; blocks on the worker that declares or initialises the variable.)");
}

void add_variables_method(nb::class_<WorkerHandle>& type) {
  type.def("variables", &variables, "arrays"_a, nb::kw_only(), "rule"_a = nb::none(), "layout"_a = nb::none(),
           "regularize"_a = false, "lr_scale"_a = nb::none(), "wait"_a.none() = 10.0,
           nb::sig("def variables(self, arrays: dict[str, A] | collections.abc.Sequence[str], *, rule: str | None = "
                   "None, layout: str | None = "
                   "None, regularize: bool | collections.abc.Collection[str] | dict[str, float] = False, lr_scale: "
                   "dict[str, float] | None = None, wait: float | None = 10.0) -> Bundle"),
           R"(Declares several variables together, as variable() does, and returns them as a Bundle, in their order.

Args:
    arrays: for each variable's name, an array with its initial values, which gives shape and dtype. Or only names, of
        variables that other workers declare: then the rest but `wait` is of no meaning.
    rule, layout, regularize: as for variable(). They apply to the variables of float32 and bfloat16. `regularize` may
        also be the names of those to which l2, l1 and weight_decay apply, or a dict of factors by name.
    lr_scale: factors of the learning rate by name; 1 for the others.
    wait: with names, as for variable(), for each of them.

Raises:
    TypeError: initial values are not given as an array; `regularize` is a string.
    ValueError: a name in `regularize` or `lr_scale` is not one of the variables.
    Otherwise as variable().

Progress: as variable().)");
}

}  // namespace

void add_declaring_methods(nb::class_<WorkerHandle>& type) {
  add_variable_method(type);
  add_variables_method(type);
}

}  // namespace ps_shm::python
