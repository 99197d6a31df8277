#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "arrays.hpp"
#include "calls.hpp"
#include "ps/job_view.hpp"
#include "server.hpp"
#include "settings.hpp"
#include "worker.hpp"

namespace ps::python {
namespace {

using namespace nb::literals;

struct Viewed : Guarded {
  explicit Viewed(const std::string& job) : Guarded(fmt::format("the view of job '{}'", job)), view(job) {}
  JobView view;
};

struct ViewHandle {
  std::shared_ptr<Viewed> own;

  // Without the interpreter's lock, one thread at a time: a view notes what it has read of the job.
  template <class Look>
  auto look(Look&& look_at) const {
    const Turn turn(*own);
    return look_at(own->view);
  }
};

VariableInfo find(const std::vector<VariableInfo>& all, const std::string& name) {
  for (const VariableInfo& one : all)
    if (one.name == name) return one;
  throw nb::key_error(name.c_str());
}

JobInfo info(const ViewHandle& self) {
  return self.look([](const JobView& view) { return view.info(); });
}

std::vector<VariableInfo> variables(const ViewHandle& self) {
  return self.look([](const JobView& view) { return view.variables(); });
}

nb::object values(const ViewHandle& self, const std::string& name) {
  const VariableInfo variable = find(variables(self), name);
  nb::object made = new_array(variable.dtype, variable.shape);
  const Array array(made, Use::kWrite, "values");
  self.look([&](const JobView& view) {
    const std::vector<std::byte> bytes = view.bytes(name);
    std::copy(bytes.begin(), bytes.end(), array.bytes().begin());
  });
  return made;
}

// Arrays of one moment: 0 of a variable is its values, the others its slots, as Snapshot::copy() numbers them.
class Cut {
 public:
  Cut(const ViewHandle& of, const std::string& group) : of_(of) {
    of_.look([&](const JobView& view) {
      snapshot_.emplace(view.snapshot({}, group));
      names_ = snapshot_->variables();
      all_ = view.variables();
    });
  }
  ~Cut() {
    const nb::gil_scoped_release release;  // no turn, whose wait may throw
    snapshot_.reset();
  }

  const std::vector<std::string>& names() const { return names_; }
  VariableInfo variable(const std::string& name) const { return find(all_, name); }
  std::uint64_t updates(const std::string& name) const {
    return of_.look([&](const JobView&) { return snapshot_->updates(name); });
  }
  std::uint64_t global_step() const { return snapshot_->global_step(); }

  nb::object copy(const std::string& name, DType dtype, const Shape& shape, std::uint64_t which) const {
    nb::object made = new_array(dtype, shape);
    const Array array(made, Use::kWrite, "values");
    of_.look([&](const JobView&) { snapshot_->copy(name, array.bytes(), which); });
    return made;
  }

 private:
  const ViewHandle& of_;
  std::optional<Snapshot> snapshot_;
  std::vector<std::string> names_;
  std::vector<VariableInfo> all_;
};

nb::dict state(const ViewHandle& self, const std::string& group) {
  nb::dict all;
  const Cut cut(self, group);
  for (const std::string& name : cut.names()) {
    const VariableInfo variable = cut.variable(name);
    all[nb::cast(name)] = cut.copy(name, variable.dtype, variable.shape, 0);
  }
  return all;
}

// What an optimizer of the package keeps: see ps_shm.torch.
nb::dict slots(const std::string& job, const std::vector<std::string>& names, const std::string& group) {
  nb::dict all;
  const ViewHandle self{std::make_shared<Viewed>(job)};
  const Cut cut(self, group);
  for (const std::string& name : names) {
    const VariableInfo variable = cut.variable(name);
    nb::dict of_variable;
    of_variable["updates"] = cut.updates(name);
    for (std::size_t k = 0; k < variable.slots.size(); ++k) {
      const bool is_of_rows = k + variable.row_slots >= variable.slots.size() && !variable.shape.empty();
      const Shape shape = is_of_rows ? Shape{variable.shape.front()} : variable.shape;
      of_variable[nb::cast(variable.slots[k])] = cut.copy(name, DType::kFloat32, shape, 1 + k);
    }
    all[nb::cast(name)] = of_variable;
  }
  all["global_step"] = cut.global_step();
  return all;
}

}  // namespace

void add_view(nb::module_& module) {
  nb::class_<WorkerInfo>(module, "WorkerInfo", "What a view sees of a worker.")
      .def_ro("rank", &WorkerInfo::rank)
      .def_prop_ro(
          "state", [](const WorkerInfo& self) { return std::string(to_string(self.state)); }, "alive, left or dead.")
      .def_ro("pid", &WorkerInfo::pid)
      .def_ro("steps", &WorkerInfo::steps)
      .def_ro("pushes", &WorkerInfo::pushes)
      .def_ro("pulls", &WorkerInfo::pulls)
      .def_ro("dropped", &WorkerInfo::dropped, "Of sync mode: gradients that came too late for their step.")
      .def_ro("examples", &WorkerInfo::examples)
      .def_ro("loss", &WorkerInfo::loss)
      .def_ro("seconds", &WorkerInfo::seconds, "Since it joined, or until it left.")
      .def_ro("waiting_for", &WorkerInfo::waiting_for)
      .def_ro("staleness", &WorkerInfo::staleness);
  nb::class_<VariableInfo>(module, "VariableInfo", "What a view sees of a variable.")
      .def_ro("name", &VariableInfo::name)
      .def_prop_ro("dtype", [](const VariableInfo& self) { return std::string(to_string(self.dtype)); })
      .def_prop_ro(
          "shape",
          [](const VariableInfo& self) {
            nb::list extents;
            for (const std::uint64_t extent : self.shape) extents.append(extent);
            return nb::tuple(extents);
          },
          nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_prop_ro("rule", [](const VariableInfo& self) { return std::string(to_string(self.rule)); })
      .def_prop_ro("layout", [](const VariableInfo& self) { return std::string(to_string(self.layout)); })
      .def_ro("updates", &VariableInfo::updates, "Pushes, on average over its chunks.")
      .def_ro("slots", &VariableInfo::slots, "The names of its optimizer's state.")
      .def_ro("initialised", &VariableInfo::initialised);
  nb::class_<Event>(module, "Event", "Something that happened in a job.")
      .def_ro("unix_ns", &Event::unix_ns)
      .def_ro("kind", &Event::kind,
              "joined, left, died, initialised, set, short-quorum, ended, decided, left-out, adopted or unregistered.")
      .def_ro("rank", &Event::rank)
      .def_ro("step", &Event::step)
      .def_ro("text", &Event::text);
  nb::class_<ViewHandle>(module, "View", R"(A look at a job, live or dead, that changes nothing.

Raises Error where there is no job of that name.)")
      .def(
          "__init__",
          [](ViewHandle* self, const std::string& job) {
            new (self) ViewHandle{shared_unless_inherited(std::make_unique<Viewed>(job))};
          },
          "job"_a)
      .def_prop_ro(
          "global_step",
          [](const ViewHandle& self) { return self.look([](const JobView& view) { return view.global_step(); }); },
          "Global steps done so far.")
      .def_prop_ro(
          "finished", [](const ViewHandle& self) { return info(self).finished; }, "Whether the last step is done.")
      .def_prop_ro(
          "served", [](const ViewHandle& self) { return info(self).served; }, "Whether a live ps has the job.")
      .def_prop_ro(
          "settings", [](const ViewHandle& self) { return as_dict(info(self).config); },
          nb::sig("def settings(self) -> dict[str, str]"), "What the job began with, as texts.")
      .def_prop_ro(
          "live", [](const ViewHandle& self) { return live_dict(info(self).live); },
          nb::sig("def live(self) -> dict[str, str]"), "The settings that can change, as they are now.")
      .def_prop_ro(
          "bytes", [](const ViewHandle& self) { return info(self).bytes.total(); }, "What the job takes of /dev/shm.")
      .def(
          "workers",
          [](const ViewHandle& self) { return self.look([](const JobView& view) { return view.workers(); }); },
          "Every rank that somebody has had.")
      .def("variables", &variables, "All variables.")
      .def(
          "events", [](const ViewHandle& self) { return self.look([](const JobView& view) { return view.events(); }); },
          "The last of what has happened, oldest first.")
      .def(
          "staleness",
          [](const ViewHandle& self) { return self.look([](const JobView& view) { return view.staleness(); }); },
          "Of all workers' pushes together.")
      .def(
          "staleness_counts",
          [](const ViewHandle& self) {
            nb::list all;
            const auto counts = self.look([](const JobView& view) { return view.staleness_counts(); });
            for (const StalenessCount& one : counts) all.append(nb::make_tuple(one.least, one.count));
            return all;
          },
          nb::sig("def staleness_counts(self) -> list[tuple[int, int]]"),
          "The least staleness of each class that was counted, and how many pushes of a chunk it had.")
      .def(
          "digest", [](const ViewHandle& self) { return self.look([](const JobView& view) { return view.digest(); }); },
          "A hash of all values: equal where they are, bit by bit.")
      .def("values", &values, "name"_a, nb::sig("def values(self, name: str) -> numpy.typing.NDArray[typing.Any]"),
           "A copy of a variable's values.")
      .def("state", &state, nb::kw_only(), "group"_a = "",
           nb::sig("def state(self, *, group: str = '') -> dict[str, numpy.typing.NDArray[typing.Any]]"),
           "A copy of all variables as they were at one moment (a snapshot), while training goes on.");
  module.def("optimizer_slots", &slots, "job"_a, "names"_a, "group"_a,
             nb::sig("def optimizer_slots(job: str, names: list[str], group: str) -> dict[str, typing.Any]"),
             "Of each variable its slots and `updates`, and the `global_step` of that moment.");
}

}  // namespace ps::python
