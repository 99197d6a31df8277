#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "arrays.hpp"
#include "calls.hpp"
#include "errors.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "server.hpp"
#include "settings.hpp"
#include "worker.hpp"

namespace ps_shm::python {
namespace {

using namespace nb::literals;

struct Viewed : Guarded {
  explicit Viewed(const std::string& job)
      : Guarded(fmt::format("the view of job '{}'", job), "is closed"), view(std::make_shared<JobView>(job)) {}
  std::shared_ptr<JobView> view;  // none after close()
};

struct ViewHandle {
  std::shared_ptr<Viewed> own;

  // Calls `look_at` without the global interpreter lock, in one thread at a time, because a view remembers what it has
  // read of the job.
  template <class Look>
  auto look(Look&& look_at) const {
    const Turn turn(*own);
    return look_at(*own->view);
  }
};

VariableInfo find(const std::vector<VariableInfo>& all, const std::string& name, const std::string& whole) {
  std::vector<std::string> names;
  for (const VariableInfo& one : all) {
    if (one.name == name) return one;
    names.push_back(one.name);
  }
  fail_not_found(whole, "variable", name, names);
}

JobInfo info(const ViewHandle& self) {
  return self.look([](const JobView& view) { return view.info(); });
}

std::vector<VariableInfo> variables(const ViewHandle& self) {
  return self.look([](const JobView& view) { return view.variables(); });
}

// What NumPy has for values of that type: float32 for bfloat16, which it does not have.
DType copied_as(DType dtype) { return dtype == DType::kBFloat16 ? DType::kFloat32 : dtype; }

nb::object values(const ViewHandle& self, const std::string& name) {
  const VariableInfo variable = find(variables(self), name, "the job");
  nb::object made = new_array(copied_as(variable.dtype), variable.shape);
  const Array array(made, Use::kWrite, "values");
  self.look([&](const JobView& view) {
    if (variable.dtype == DType::kBFloat16) {
      const std::vector<float> floats = view.values(name);
      std::copy(floats.begin(), floats.end(), array.as<float>().begin());
    } else {
      const std::vector<std::byte> bytes = view.bytes(name);
      std::copy(bytes.begin(), bytes.end(), array.bytes().begin());
    }
  });
  return made;
}

// A consistent snapshot.
class TakenSnapshot {
 public:
  TakenSnapshot(ViewHandle of, const std::string& group, const SnapshotOptions& options = {}) : of_(std::move(of)) {
    of_.look([&](const JobView& view) {
      view_ = of_.own->view;
      snapshot_.emplace(view.snapshot(options, group));
      names_ = snapshot_->variables();
      all_ = view.variables();
    });
  }
  TakenSnapshot(const TakenSnapshot&) = delete;
  ~TakenSnapshot() { release(); }

  void release() {
    const Released release(Released::AtEnd::kKeep);  // without a turn, because waiting for one may throw
    snapshot_.reset();
  }

  const std::vector<std::string>& names() const { return names_; }
  VariableInfo variable(const std::string& name) const {
    if (std::find(names_.begin(), names_.end(), name) == names_.end())
      fail_not_found("the snapshot", "variable", name, names_);
    return find(all_, name, "the snapshot");
  }
  std::uint64_t updates(const std::string& name) const { return get().updates(name); }
  std::uint64_t global_step() const { return get().global_step(); }
  std::vector<std::uint32_t> partial_ranks() const { return get().partial_ranks(); }
  bool is_point_in_time(const std::string& name) const { return get().is_point_in_time(name); }

  nb::object copy(const std::string& name, DType dtype, const Shape& shape, const std::string& slot = {}) const {
    nb::object made = new_array(copied_as(dtype), shape);
    const Array array(made, Use::kWrite, "values");
    if (dtype == DType::kBFloat16)
      of_.look([&](const JobView&) { get().copy(name, array.as<float>(), slot); });
    else
      copy_to(name, array, slot);
    return made;
  }
  void copy_to(const std::string& name, const Array& array, const std::string& slot = {}) const {
    of_.look([&](const JobView&) { get().copy(name, array.bytes(), slot); });
  }

 private:
  const Snapshot& get() const {
    if (!snapshot_) throw Error("the snapshot has been released", ErrorCode::kInvalidState);
    return *snapshot_;
  }

  ViewHandle of_;
  std::shared_ptr<JobView> view_;  // which a snapshot needs to its end
  std::optional<Snapshot> snapshot_;
  std::vector<std::string> names_;
  std::vector<VariableInfo> all_;
};

void copy_to(const TakenSnapshot& self, const std::string& name, nb::handle out) {
  const std::string what = fmt::format("copy of variable '{}': the array", name);
  const VariableInfo variable = self.variable(name);
  const Array array(out, Use::kWrite, what);
  array.require(variable.dtype, variable.shape, what);
  self.copy_to(name, array);
}

// For calls whose result has no place for it.
void warn_of_partial_ranks(const TakenSnapshot& taken) {
  const std::vector<std::uint32_t> ranks = taken.partial_ranks();
  if (ranks.empty()) return;
  const std::string line = fmt::format(
      "a part of a push may be in the snapshot: rank {} was stopped within one (see Snapshot.partial_ranks)",
      fmt::join(ranks, ", "));
  if (PyErr_WarnEx(PyExc_UserWarning, line.c_str(), 1) != 0) throw nb::python_error();
}

nb::dict state(const ViewHandle& self, const std::string& group) {
  nb::dict all;
  const TakenSnapshot taken(self, group);
  warn_of_partial_ranks(taken);
  for (const std::string& name : taken.names()) {
    const VariableInfo variable = taken.variable(name);
    all[nb::cast(name)] = taken.copy(name, variable.dtype, variable.shape);
  }
  return all;
}

// The optimizer state that ps_shm.torch saves.
nb::dict slots(const std::string& job, const std::vector<std::string>& names, const std::vector<std::string>& masters,
               const std::string& group) {
  nb::dict all;
  const ViewHandle self{std::make_shared<Viewed>(job)};
  const TakenSnapshot taken(self, group);
  warn_of_partial_ranks(taken);
  for (const std::string& name : names) {
    const VariableInfo variable = taken.variable(name);
    nb::dict of_variable;
    of_variable["updates"] = taken.updates(name);
    for (std::size_t k = 0; k < variable.slots.size(); ++k) {
      const bool is_of_rows = k + variable.row_slots >= variable.slots.size() && !variable.shape.empty();
      const Shape shape = is_of_rows ? Shape{variable.shape.front()} : variable.shape;
      of_variable[nb::cast(variable.slots[k])] = taken.copy(name, DType::kFloat32, shape, variable.slots[k]);
    }
    all[nb::cast(name)] = of_variable;
  }
  for (const std::string& name : masters)
    all[nb::cast(name)]["master"] = taken.copy(name, DType::kFloat32, taken.variable(name).shape);
  all["global_step"] = taken.global_step();
  return all;
}

nb::object table_rows(const ViewHandle& self, const std::string& name) {
  std::vector<TableRow> rows;
  std::size_t width = 0;
  self.look([&](const JobView& view) {
    rows = view.table_rows(name);
    for (const TableInfo& table : view.tables())
      if (table.spec.name == name) width = table.spec.row_size;
  });
  const nb::object all_keys = new_array(DType::kUint64, {rows.size()});
  const nb::object all_rows = new_array(DType::kFloat32, {rows.size(), width});
  const Array to_keys(all_keys, Use::kWrite, "keys"), to_rows(all_rows, Use::kWrite, "rows");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    to_keys.as<std::uint64_t>()[i] = rows[i].key;
    std::copy(rows[i].values.begin(), rows[i].values.end(), to_rows.as<float>().begin() + i * width);
  }
  return nb::make_tuple(all_keys, all_rows);
}

void add_snapshot(nb::module_& module) {
  nb::class_<TakenSnapshot>(
      module, "Snapshot",
      R"(A consistent snapshot of all variables, taken while training goes on. Returned by View.snapshot().

A job has one snapshot at a time, and pushes cost a little more while there is one. It is released at the end of a
`with` statement, by release(), or when the object goes.

    with view.snapshot() as snapshot:
        for name in snapshot.variables:
            snapshot.copy(name, arrays[name]))")
      .def_prop_ro(
          "global_step", &TakenSnapshot::global_step,
          "The number of global steps done at the snapshot point. Mode sync: exactly the updates of these steps "
          "are in it. Other modes: exact up to the steps that were under way.")
      .def_prop_ro(
          "partial_ranks", &TakenSnapshot::partial_ranks,
          "The ranks of the workers that were stopped within a push for longer than a snapshot waits: a part of "
          "that push may be in it. Mode sync: all ranks, if all workers died while a step was being applied.")
      .def_prop_ro("variables", &TakenSnapshot::names, "The names of the variables, those that were initialised.")
      .def("is_point_in_time", &TakenSnapshot::is_point_in_time, "name"_a,
           R"(Returns whether all elements of a variable are from the snapshot point.

Large in-place variables, and those of a job with Hogwild! updates, are not.

Args:
    name: the variable's.

Raises:
    Error: the snapshot has no such variable (NOT_FOUND).)")
      .def("copy", &copy_to, "name"_a, "out"_a, nb::sig("def copy(self, name: str, out: Array) -> None"),
           R"(Copies the values of a variable at the snapshot point into an array.

Args:
    name: the variable's.
    out: an array of the variable's type and shape, or with as many elements in one axis.

Raises:
    NotFound: the snapshot has no such variable.
    TypeError: the array has another type.
    ValueError: it has another shape.
    Error: the snapshot has been released (INVALID_STATE).

Progress: lock-free.)")
      .def("release", &TakenSnapshot::release, "Releases the snapshot. Calling it again does nothing.")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Snapshot"))
      .def(
          "__exit__", [](TakenSnapshot& self, const nb::args&) { self.release(); },
          nb::sig("def __exit__(self, *_: object) -> None"));
}

nb::class_<ViewHandle> add_view_facts(nb::module_& module) {
  nb::class_<ViewHandle> type(
      module, "View",
      R"(A view of a job, live or dead. It changes nothing in the job, except that state() and snapshot() take a snapshot.

    with ps_shm.View("job") as view:
        print(view.global_step, [(w.rank, w.state, w.loss) for w in view.workers()])
        w = view.values("w")                    # a copy of one variable
        everything = view.state()               # all variables at one moment

Args:
    job: the name of a job of any user whose segments this process may read.

Raises:
    Error: there is no such job (NOT_FOUND), it is still being created (UNAVAILABLE), another build or layout version
        made it (INCOMPATIBLE), or it is not readable (PERMISSION_DENIED).

All methods and properties raise Error (DAMAGED) if a segment of the job is damaged, and Error (INVALID_STATE) in a
forked child.)");
  type.def(
          "__init__",
          [](ViewHandle* self, const std::string& job) {
            new (self) ViewHandle{shared_unless_inherited(std::make_unique<Viewed>(job))};
          },
          "job"_a)
      .def_prop_ro(
          "global_step",
          [](const ViewHandle& self) { return self.look([](const JobView& view) { return view.global_step(); }); },
          "The number of global steps that the job has done so far. Cheap; for polling.")
      .def_prop_ro(
          "instance", [](const ViewHandle& self) { return info(self).instance; },
          "A random number that identifies this job among those of its name.")
      .def_prop_ro(
          "finished", [](const ViewHandle& self) { return info(self).finished; },
          "Whether the job has done its last step.")
      .def_prop_ro(
          "served", [](const ViewHandle& self) { return info(self).served; }, "Whether the job has a live server (ps).")
      .def_prop_ro(
          "settings", [](const ViewHandle& self) { return as_dict(info(self).config); },
          nb::sig("def settings(self) -> dict[str, typing.Any]"),
          "The settings that the job was created with, as Worker.settings has them.")
      .def_prop_ro(
          "live", [](const ViewHandle& self) { return live_dict(info(self).live); },
          nb::sig("def live(self) -> dict[str, typing.Any]"),
          "The runtime settings in force: lr, momentum, beta1, clip_norm, mode, staleness, quorum, stale_limit and "
          "workers.")
      .def_prop_ro(
          "guest_ticket", [](const ViewHandle& self) { return info(self).guest_ticket; },
          "The greatest ticket with which a Guest has changed the job; 0: there was none.")
      .def_prop_ro(
          "bytes", [](const ViewHandle& self) { return info(self).bytes.total(); },
          "The memory of /dev/shm that the job takes, in bytes.");
  return type;
}

void close(const ViewHandle& self) {
  if (self.own->is_inherited() || self.own->is_closed) return;
  const Turn turn(*self.own);
  self.own->view.reset();
  self.own->is_closed = true;
}

void add_view_life(nb::class_<ViewHandle>& type) {
  type.def("__repr__", [](const ViewHandle& self) { return fmt::format("<{}>", self.own->what()); })
      .def("close", &close,
           R"(Gives back what the view has mapped.

Afterwards all methods and properties raise Error (INVALID_STATE). Calling it again does nothing. In a forked child it
has no effect. A `with` statement calls it at its end.)")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> View"))
      .def(
          "__exit__", [](const ViewHandle& self, const nb::args&) { close(self); },
          nb::sig("def __exit__(self, *_: object) -> None"));
}

void add_view_lists(nb::class_<ViewHandle>& type) {
  type.def(
          "workers",
          [](const ViewHandle& self) { return self.look([](const JobView& view) { return view.workers(); }); },
          "Returns a WorkerInfo for every rank that has had an owner.")
      .def("variables", &variables, "Returns a VariableInfo for every variable, in the order of their declaration.")
      .def(
          "tables", [](const ViewHandle& self) { return self.look([](const JobView& view) { return view.tables(); }); },
          "Returns a TableInfo for every table by key, in the order of their declaration.")
      .def("table_rows", &table_rows, "name"_a,
           nb::sig("def table_rows(self, name: str) -> tuple[numpy.typing.NDArray[numpy.uint64], "
                   "numpy.typing.NDArray[numpy.float32]]"),
           R"(Returns the keys and the rows of a table by key, as new NumPy arrays.

Each row is its key's throughout; rows are of different moments.

Args:
    name: the table's.

Raises:
    Error: there is no such table (NOT_FOUND).)")
      .def(
          "events", [](const ViewHandle& self) { return self.look([](const JobView& view) { return view.events(); }); },
          "Returns the newest events of the job, oldest first: 256 of them, and besides these the newest 1024 step "
          "decisions.")
      .def(
          "staleness",
          [](const ViewHandle& self) { return self.look([](const JobView& view) { return view.staleness(); }); },
          "Returns the Staleness of the pushes of all workers.")
      .def(
          "staleness_counts",
          [](const ViewHandle& self) {
            nb::list all;
            const auto counts = self.look([](const JobView& view) { return view.staleness_counts(); });
            for (const StalenessCount& one : counts) all.append(nb::make_tuple(one.least, one.count));
            return all;
          },
          nb::sig("def staleness_counts(self) -> list[tuple[int, int]]"),
          R"(Returns the histogram of staleness, as pairs (least, count) in ascending order, without empty buckets.

`count` pushes of a chunk (in-place: of a block) had a staleness of at least `least`. Up to 63 it was exactly `least`;
above, it was below twice `least`.)");
}

void add_view_values(nb::class_<ViewHandle>& type) {
  type.def(
          "digest", [](const ViewHandle& self) { return self.look([](const JobView& view) { return view.digest(); }); },
          "Returns a 64-bit hash of the names and values of all variables. It is equal if these are, bit by bit.")
      .def("values", &values, "name"_a, nb::sig("def values(self, name: str) -> numpy.typing.NDArray[typing.Any]"),
           R"(Returns a copy of a variable's values, as a new NumPy array. Values of bfloat16 are converted to float32.

Each chunk is one version of that chunk, and each element of an in-place variable is whole; with layout single-writer, each
block of 128 elements of a chunk. The copy as a whole is not point-in-time; see state().

Raises:
    NotFound: there is no variable of that name.
    Error: the variable is not initialised (INVALID_STATE).
    TypeError: the variable is of a type that NumPy does not have, such as float8_e5m2.)");
}

void add_view_snapshots(nb::class_<ViewHandle>& type) {
  type.def(
          "snapshot",
          [](const ViewHandle& self, const std::string& group, Limit wait) {
            return new TakenSnapshot(self, group, {.wait = limit(wait)});
          },
          nb::rv_policy::take_ownership, nb::kw_only(), "group"_a = "", "wait"_a.none() = 60.0,
          nb::sig("def snapshot(self, *, group: str = '', wait: float | None = 60.0) -> Snapshot"),
          R"(Takes a consistent snapshot and returns it as a Snapshot, which copies into arrays that there are.

Args:
    group: as for state().
    wait: how many seconds to wait for another snapshot to be released; mode sync: or for a step to be applied.

Raises:
    Error: as state().

Progress: as state().)")
      .def("state", &state, nb::kw_only(), "group"_a = "",
           nb::sig("def state(self, *, group: str = '') -> dict[str, numpy.typing.NDArray[typing.Any]]"),
           R"(Returns a copy of all initialised variables at one moment: a dict of new NumPy arrays by name. Values of
bfloat16 are converted to float32.

It is made from a consistent snapshot, which contains each push completely or not at all, over all variables. It is
taken while training goes on, also of a dead job; pushes that begin meanwhile wait for those under way. If a worker is
stopped within a push, a part of it may be included, which a UserWarning says (Snapshot.partial_ranks). In-place
variables that are large, or belong to a job with Hogwild! updates, are not point-in-time: their elements may be from
different moments.

Args:
    group: the Unix group with which another user's job is shared. Empty: only this user's jobs.

Raises:
    Error: the job is another user's (PERMISSION_DENIED); workers do not finish applying a sync step (UNAVAILABLE);
        /dev/shm is full (NO_SPACE); the name belongs to another job by now (INVALID_STATE).
    Timeout: another snapshot was not released in time.

Progress: blocks on another snapshot, and on the pushes (mode sync: the step) under way.)");
}

}  // namespace

void add_view(nb::module_& module) {
  add_view_records(module);
  add_snapshot(module);
  nb::class_<ViewHandle> type = add_view_facts(module);
  add_view_life(type);
  add_view_lists(type);
  add_view_values(type);
  add_view_snapshots(type);
  module.def("optimizer_slots", &slots, "job"_a, "names"_a, "masters"_a, "group"_a,
             nb::sig("def optimizer_slots(job: str, names: list[str], masters: list[str], group: str) -> dict[str, "
                     "typing.Any]"),
             "Returns, from a consistent snapshot, a dict with the optimizer slots and the number of `updates` of each "
             "of these variables, the values of the `masters` among them as `master`, and the `global_step`. For "
             "ps_shm.torch.");
}

}  // namespace ps_shm::python
