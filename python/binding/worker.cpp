#include "worker.hpp"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>

#include "config/job_settings.hpp"
#include "ps/errors.hpp"
#include "ps/job_control.hpp"
#include "settings.hpp"

namespace ps::python {
namespace {

using namespace nb::literals;

struct WorkerHandle {
  SharedRank rank;

  Worker& use() const { return rank->worker; }
};

SharedRank join(const std::string& job, const std::string& group, std::optional<std::uint32_t> rank,
                std::uint32_t threads, double wait) {
  const nb::gil_scoped_release release;
  Worker worker({.job = job,
                 .group = group,
                 .rank = rank,
                 .threads = threads,
                 .wait_job_seconds = wait,
                 .stop_requested = look_for_signals,
                 .notice = tell});
  const std::string what = fmt::format("worker {} of job '{}'", worker.rank(), job);
  return shared_unless_inherited(std::make_unique<Rank>(what, std::move(worker)));
}

// A variable's first values: an array, a number, or a function that fills an array.
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
        const nb::object values = new_array(spec.dtype, spec.shape);  // with memory of its own: somebody may keep it
        const Array array(values, Use::kWrite, fmt::format("variable '{}': init", spec.name));
        std::fill(array.bytes().begin(), array.bytes().end(), std::byte{0});
        function(values);
        std::memcpy(out.data(), array.bytes().data(), array.bytes().size());
      });
    } else if (number) {
      std::fill(out.begin(), out.end(), *number);
    }
  }

  std::optional<Array> array;
  std::optional<float> number;
  nb::object function;
};

VariableSpec specify(const std::string& name, const Initial& init, const std::optional<Shape>& shape,
                     const std::optional<std::string>& dtype, const std::optional<std::string>& rule,
                     const std::optional<std::string>& layout, bool regularize) {
  VariableSpec spec{.name = name, .rule = {}, .layout = {}, .regularize = regularize};
  if (shape) spec.shape = *shape;
  if (dtype) spec.dtype = dtype_of(*dtype);
  if (init.array) {
    if (!shape) spec.shape = init.array->shape();
    if (!dtype) spec.dtype = init.array->dtype();
    init.array->require(spec.dtype, spec.shape, fmt::format("variable '{}': init", name));
  }
  if (init.number && spec.dtype != DType::kFloat32)
    throw nb::type_error(
        fmt::format("variable '{}': a number is for float32 only; pass init as an array", name).c_str());
  if (rule) spec.rule = rule_of(*rule);
  if (layout) spec.layout = layout_of(*layout);
  return spec;
}

nb::object variable(const WorkerHandle& self, const std::string& name, nb::object init, std::optional<Shape> shape,
                    std::optional<std::string> dtype, std::optional<std::string> rule,
                    std::optional<std::string> layout, bool regularize, double wait) {
  if (init.is_none() && !shape) {
    std::optional<Variable> found;
    {
      const Turn turn(*self.rank);
      found = self.use().variable(name, wait);
    }
    return nb::cast(NamedVariable{self.rank, *found, shape_in_job(self.use().config().job, name)});
  }
  const Initial initial(init, name);
  const VariableSpec spec = specify(name, initial, shape, dtype, rule, layout, regularize);
  std::optional<Variable> made;
  {
    const Turn turn(*self.rank);
    made = self.use().variable(spec, [&](std::span<float> out) { initial.fill(spec, out); });
  }
  return nb::cast(NamedVariable{self.rank, *made, spec.shape});
}

nb::object variables(const WorkerHandle& self, nb::dict arrays, std::optional<std::string> rule,
                     std::optional<std::string> layout, bool regularize) {
  std::vector<Initial> initials;
  std::vector<VariableSpec> specs;
  for (const auto& [key, array] : arrays) {
    const auto name = nb::cast<std::string>(key);
    initials.emplace_back(array, name);
    if (!initials.back().array)
      throw nb::type_error(fmt::format("variable '{}': pass its first values as an array", name).c_str());
    const bool has_floats = initials.back().array->dtype() == DType::kFloat32;
    specs.push_back(specify(name, initials.back(), {}, {}, has_floats ? rule : std::nullopt,
                            has_floats ? layout : std::nullopt, has_floats && regularize));
  }
  std::vector<Variable> made;
  {
    const Turn turn(*self.rank);
    made = self.use().variables(specs, [&](std::size_t i, std::span<float> out) { initials[i].fill(specs[i], out); });
  }
  std::vector<NamedVariable> named;
  for (std::size_t i = 0; i < made.size(); ++i) named.push_back({self.rank, made[i], specs[i].shape});
  return make_bundle(std::move(named));
}

// In front of the block that workers share: what an array is.
struct SharedHeader {
  std::uint64_t dtype = 0, axes = 0, extents[30] = {};
};
static_assert(sizeof(SharedHeader) == 256, "elements behind it lie aligned to 64 bytes");

nb::object shared(const WorkerHandle& self, const std::string& key, nb::callable load) {
  SharedBytes block;
  {
    const Turn turn(*self.rank);
    block = self.use().shared(key, [&](const auto& room) {
      with_python([&] {
        const Array array(load(), Use::kRead, "what `load` has returned");
        SharedHeader header{.dtype = static_cast<std::uint64_t>(array.dtype()), .axes = array.shape().size()};
        if (header.axes > std::size(header.extents)) throw nb::value_error("an array has at most 30 axes here");
        std::copy(array.shape().begin(), array.shape().end(), header.extents);
        const std::span<std::byte> out = room(sizeof header + array.bytes().size());
        std::memcpy(out.data(), &header, sizeof header);
        std::memcpy(out.data() + sizeof header, array.bytes().data(), array.bytes().size());
      });
    });
  }
  SharedHeader header;
  if (block.bytes.size() < sizeof header) throw Error("the job's shared block was not loaded from Python");
  std::memcpy(&header, block.bytes.data(), sizeof header);
  const auto dtype = static_cast<DType>(header.dtype);
  if (bytes_of(dtype) == 0 || header.axes > std::size(header.extents))
    throw Error("the job's shared block was not loaded from Python");
  auto* kept = new std::shared_ptr<const void>(block.memory);
  const nb::capsule owner(kept,
                          [](void* memory) noexcept { delete static_cast<std::shared_ptr<const void>*>(memory); });
  return as_array(block.bytes.data() + sizeof header, dtype, Shape(header.extents, header.extents + header.axes), owner,
                  Use::kRead);
}

void leave(const WorkerHandle& self) {
  if (self.rank->is_inherited() || self.rank->is_closed) return;
  const Turn turn(*self.rank);
  self.use().leave();
  self.rank->is_closed = true;
}

}  // namespace

void add_worker(nb::module_& module) {
  nb::class_<StalenessSummary>(module, "Staleness", "How many updates by others came between a pull and its push.")
      .def_ro("mean", &StalenessSummary::mean)
      .def_ro("p50", &StalenessSummary::p50)
      .def_ro("p99", &StalenessSummary::p99)
      .def_ro("max", &StalenessSummary::max)
      .def("__repr__", [](const StalenessSummary& self) {
        return fmt::format("Staleness(mean={:.2f}, p50={}, p99={}, max={})", self.mean, self.p50, self.p99, self.max);
      });
  nb::class_<WorkerHandle>(module, "Worker", "A rank of a job.")
      .def(
          "__init__",
          [](WorkerHandle* self, const std::string& job, const std::string& group, std::optional<std::uint32_t> rank,
             std::uint32_t threads, double wait) { new (self) WorkerHandle{join(job, group, rank, threads, wait)}; },
          "job"_a, "group"_a, "rank"_a.none(), "threads"_a, "wait"_a)
      .def_prop_ro(
          "rank", [](const WorkerHandle& self) { return self.rank->check(), self.use().rank(); },
          "Its number in the job, from 0.")
      .def_prop_ro(
          "is_chief", [](const WorkerHandle& self) { return self.rank->check(), self.use().is_chief(); },
          "Whether its rank is 0.")
      .def_prop_ro(
          "job", [](const WorkerHandle& self) { return self.use().config().job; }, "The job's name.")
      .def_prop_ro(
          "settings", [](const WorkerHandle& self) { return as_dict(self.use().config()); },
          nb::sig("def settings(self) -> dict[str, str]"), "What the job began with, as texts.")
      .def_prop_ro(
          "live", [](const WorkerHandle& self) { return self.rank->check(), live_dict(self.use().live()); },
          nb::sig("def live(self) -> dict[str, str]"), "The settings that can change, as they are now.")
      .def(
          "set",
          [](const WorkerHandle& self, const nb::kwargs& settings) {
            self.rank->check();
            JobControl control(self.use().config().job, self.use().config().group);
            control.change([&](LiveSettings& live) { alter(live, control.config(), settings); });
          },
          "settings"_a, nb::sig("def set(self, **settings: typing.Any) -> None"),
          "Changes the running job, as Server.set().")
      .def(
          "check_settings",
          [](const WorkerHandle& self, const nb::dict& settings) { check_given(self.use().config(), settings); },
          "settings"_a, nb::sig("def check_settings(self, settings: dict[str, typing.Any]) -> None"),
          "Raises Error where the job began with another value of one of these; the message says which.")
      .def_prop_ro(
          "global_step", [](const WorkerHandle& self) { return self.rank->check(), self.use().global_step(); },
          "Global steps done so far.")
      .def_prop_ro(
          "finished", [](const WorkerHandle& self) { return self.rank->check(), self.use().finished(); },
          "Whether the job's last step is done, or the job was ended.")
      .def("variable", &variable, "name"_a, "init"_a = nb::none(), nb::kw_only(), "shape"_a = nb::none(),
           "dtype"_a = nb::none(), "rule"_a = nb::none(), "layout"_a = nb::none(), "regularize"_a = false,
           "wait"_a = 10.0,
           nb::sig(
               "def variable(self, name: str, init: typing.Any = None, *, shape: collections.abc.Sequence[int] | None "
               "= None, dtype: str | None = None, rule: str | None = None, layout: str | None = None, regularize: bool "
               "= False, wait: float = 10.0) -> Variable"),
           R"(The variable of that name; whoever comes first creates it, with these first values.

init: an array, which gives shape and dtype, too; a number; or a function that fills the array that it is given. With
`shape` and no `init` the values begin as 0. With neither, the variable is one that another worker creates, waited for up
to `wait` seconds. rule: an optimizer's name or add; layout: versioned or inplace; none: the job's.
Raises Error where the job has another variable of that name.)")
      .def(
          "variables", &variables, "arrays"_a, nb::kw_only(), "rule"_a = nb::none(), "layout"_a = nb::none(),
          "regularize"_a = false,
          nb::sig("def variables(self, arrays: dict[str, typing.Any], *, rule: str | None = None, layout: str | None = "
                  "None, regularize: bool = False) -> Bundle"),
          "variable() for each name and its first values. `rule`, `layout` and `regularize` are for those of float32.")
      .def(
          "step",
          [](const WorkerHandle& self) {
            const Turn turn(*self.rank);
            const std::uint64_t global_step = self.use().step();
            ++self.rank->steps;
            return global_step;
          },
          "Ends a training step and returns the global step after it. ssp and sync wait here for others; Ctrl-C ends "
          "the wait, and the job goes on.")
      .def_prop_ro(
          "steps", [](const WorkerHandle& self) { return self.rank->steps.load(); },
          "Steps that this worker has ended.")
      .def(
          "barrier",
          [](const WorkerHandle& self) {
            const Turn turn(*self.rank);
            self.use().barrier();
          },
          "Waits until every worker that has neither died nor left is here.")
      .def(
          "wait_for_workers",
          [](const WorkerHandle& self) {
            const Turn turn(*self.rank);
            self.use().wait_for_workers();
          },
          "Waits until as many workers as the job starts with have joined.")
      .def(
          "report",
          [](const WorkerHandle& self, double loss, std::uint64_t examples) {
            const Turn turn(*self.rank);
            self.use().report(loss, examples);
          },
          "loss"_a, "examples"_a,
          "What progress lines and inspect_shm show of this worker: its loss, and the examples that it has done so "
          "far.")
      .def(
          "staleness",
          [](const WorkerHandle& self) {
            const Turn turn(*self.rank);
            return self.use().staleness();
          },
          "The staleness of this worker's pushes so far.")
      .def(
          "shared", &shared, "key"_a, "load"_a,
          nb::sig("def shared(self, key: str, load: collections.abc.Callable[[], typing.Any]) -> "
                  "numpy.typing.NDArray[typing.Any]"),
          "An array that the job's workers have once, read-only: `load` is called in one of them and returns it. A job "
          "has one, of whatever `key`.")
      .def("leave", &leave, "Gives the rank back. The object is of no use afterwards.")
      .def("__repr__", [](const WorkerHandle& self) { return fmt::format("<{}>", self.rank->what()); });
}

}  // namespace ps::python
