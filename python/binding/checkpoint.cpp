#include <fmt/format.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <filesystem>

#include "arrays.hpp"
#include "calls.hpp"
#include "errors.hpp"
#include "persistence/checkpoint_folder.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/job_view.hpp"
#include "server.hpp"
#include "update/traits.hpp"

namespace ps_shm::python {
namespace {

using namespace nb::literals;

const StoredVariable& find(const Checkpoint& self, const std::string& name) {
  std::vector<std::string> names;
  for (const StoredVariable& one : self.variables()) {
    if (one.name == name) return one;
    names.push_back(one.name);
  }
  fail_not_found(fmt::format("checkpoint {}", self.folder()), "variable", name, names);
}

// Whether the slot has one float for each row instead of each element.
bool is_of_rows(const std::string& slot) {
  return slot == update::traits_of(UpdateRule::kRowwiseAdagrad).row_slot.name;
}

nb::object read(const Checkpoint& self, const std::string& name, const std::string& slot, nb::object out) {
  const StoredVariable& variable = find(self, name);
  if (!slot.empty() && std::find(variable.slots.begin(), variable.slots.end(), slot) == variable.slots.end())
    fail_not_found(fmt::format("variable '{}' of checkpoint {}", name, self.folder()), "slot", slot, variable.slots);
  const DType dtype = slot.empty() ? variable.dtype : DType::kFloat32;
  Shape shape = variable.shape;
  if (is_of_rows(slot)) shape.resize(1);
  if (out.is_none()) out = new_array(dtype, shape);
  const std::string what = fmt::format("read of variable '{}': out", name);
  const Array array(out, Use::kWrite, what);
  array.require(dtype, shape, what);
  const Released release;
  self.read(name, array.bytes(), slot);
  return out;
}

nb::object read_table(const Checkpoint& self, const std::string& name) {
  const std::vector<StoredTable>& all = self.tables();
  const auto found = std::find_if(all.begin(), all.end(), [&](const StoredTable& one) { return one.name == name; });
  if (found == all.end()) {
    std::vector<std::string> names;
    for (const StoredTable& one : all) names.push_back(one.name);
    fail_not_found(fmt::format("checkpoint {}", self.folder()), "table", name, names);
  }
  const nb::object keys = new_array(DType::kUint64, {found->rows});
  const nb::object rows = new_array(DType::kFloat32, {found->rows, found->row_size});
  const nb::object state = new_array(DType::kFloat32, {found->rows, found->state_size()});
  {
    const Array to_keys(keys, Use::kWrite, "keys"), to_rows(rows, Use::kWrite, "rows"),
        to_state(state, Use::kWrite, "state");
    const Released release;
    self.read_rows(name, 0, to_keys.as<std::uint64_t>(), to_rows.as<float>(), to_state.as<float>());
  }
  return nb::make_tuple(keys, rows, state);
}

std::string save(const std::string& job, const std::string& folder, std::optional<double> loss,
                 std::uint64_t max_file_bytes, const std::string& group) {
  const Released release;
  return Checkpoint::save(JobView(job), folder, {.max_file_bytes = max_file_bytes, .loss = loss, .group = group});
}

std::optional<Checkpoint> latest(const std::string& folder) {
  const Released release;
  return Checkpoint::latest(folder, tell);
}

// Writes a checkpoint of a state that ps_shm.torch has saved, so that a job can begin with it: values[name], and
// slots[name][slot].
std::string write(const std::string& folder, std::uint64_t global_step, const nb::dict& values, const nb::dict& slots) {
  std::vector<Array> arrays;  // kept until they are written
  persistence::CheckpointArrays all;
  const auto add = [&](nb::handle given, const std::string& what) -> const Array& {
    return arrays.emplace_back(given, Use::kRead, what);
  };
  std::size_t count = nb::len(values);
  for (const auto& [name, of_variable] : slots) count += nb::len(nb::borrow<nb::dict>(of_variable));
  arrays.reserve(count);
  for (const auto& [key, value] : values) {
    const auto name = name_in(key);
    const Array& array = add(value, name);
    StoredVariable variable{.name = name, .dtype = array.dtype(), .shape = array.shape()};
    const nb::dict kept = slots.contains(key) ? nb::borrow<nb::dict>(slots[key]) : nb::dict();
    if (kept.contains("updates")) variable.updates = nb::cast<std::uint64_t>(kept["updates"]);
    all.add(std::move(variable), persistence::reader_of(array.bytes()));
    for (const auto& [slot, numbers] : kept) {
      const auto slot_name = name_in(slot);
      if (slot_name == "updates") continue;
      const Array& of_slot = add(numbers, fmt::format("{}.{}", name, slot_name));
      Shape shape = array.shape();
      if (!shape.empty() && of_slot.shape() == Shape{shape.front()}) shape = of_slot.shape();  // one float for each row
      of_slot.require(DType::kFloat32, shape, fmt::format("{}.{}", name, slot_name));
      all.add_slot(slot_name, of_slot.shape(), persistence::reader_of(of_slot.bytes()));
    }
  }
  const Released release;
  persistence::CheckpointFacts facts;
  facts.job = "torch";
  facts.global_step = global_step;
  return persistence::write_checkpoint(folder, std::move(facts), all, CheckpointOptions().max_file_bytes);
}

nb::dict state(const Checkpoint& self) {
  nb::dict all;
  for (const StoredVariable& one : self.variables()) all[nb::cast(one.name)] = read(self, one.name, "", nb::none());
  return all;
}

void add_stored(nb::module_& module) {
  nb::class_<StoredVariable>(module, "StoredVariable", "A variable in a checkpoint, as Checkpoint.variables lists it.")
      .def_ro("name", &StoredVariable::name, "The variable's name.")
      .def_prop_ro(
          "dtype", [](const StoredVariable& self) { return std::string(to_string(self.dtype)); },
          "The type of the elements, such as 'float32'.")
      .def_prop_ro(
          "shape",
          [](const StoredVariable& self) {
            nb::list extents;
            for (const std::uint64_t extent : self.shape) extents.append(extent);
            return nb::tuple(extents);
          },
          nb::sig("def shape(self) -> tuple[int, ...]"), "The extents of the axes; () for a scalar.")
      .def_ro("updates", &StoredVariable::updates,
              "The number of steps that its optimizer state contains, on average over its chunks.")
      .def_ro("is_point_in_time", &StoredVariable::is_point_in_time, "Whether all of its elements are from one moment.")
      .def_ro("slots", &StoredVariable::slots, "The names of its optimizer slots; a moving average is called 'ema'.")
      .def("__repr__", [](const StoredVariable& self) {
        return fmt::format("<stored variable '{}' of {}, shape {}>", self.name, to_string(self.dtype),
                           to_text(self.shape));
      });
  nb::class_<StoredTable>(module, "StoredTable", "A table by key in a checkpoint, as Checkpoint.tables lists it.")
      .def_ro("name", &StoredTable::name, "The table's name.")
      .def_prop_ro(
          "dtype", [](const StoredTable& self) { return std::string(to_string(self.dtype)); },
          "The type of the stored elements: 'float32' or 'bfloat16'.")
      .def_ro("row_size", &StoredTable::row_size, "The number of elements in a row.")
      .def_ro("rows", &StoredTable::rows, "The number of rows that are stored. They are of different moments.")
      .def_ro("rule", &StoredTable::rule, "The name of its update rule.")
      .def_ro("slots", &StoredTable::slots, "The names of its optimizer slots.")
      .def("__repr__", [](const StoredTable& self) {
        return fmt::format("<stored table '{}' of {} rows of {}>", self.name, self.rows, self.row_size);
      });
}

void add_checkpoint_facts(nb::class_<Checkpoint>& type) {
  type.def_prop_ro("folder", &Checkpoint::folder, "The folder of the checkpoint.")
      .def_prop_ro("global_step", &Checkpoint::global_step, "The number of global steps that the job had done.")
      .def_prop_ro("loss", &Checkpoint::loss,
                   "The training loss that was stored when it was saved; None if there is none.")
      .def_prop_ro("settings", &Checkpoint::settings, "The settings of the job, as text, by the names of the options.")
      .def_prop_ro("examples", &Checkpoint::examples, "How many examples each rank had trained on, by rank.")
      .def_prop_ro("variables", &Checkpoint::variables,
                   "A StoredVariable for each variable, in the order of their names.");
}

void add_checkpoint_reading(nb::class_<Checkpoint>& type) {
  type.def_prop_ro("tables", &Checkpoint::tables, "A StoredTable for each table by key, in the order of their names.")
      .def("read_table", &read_table, "name"_a,
           nb::sig("def read_table(self, name: str) -> tuple[numpy.typing.NDArray[numpy.uint64], "
                   "numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.float32]]"),
           R"(Reads a table by key, and returns its keys, its rows and their state, as Table.assign() takes them.

Args:
    name: the name of the table.

Raises:
    NotFound: there is no such table.
    Error: a file cannot be read.)")
      .def("verify", &Checkpoint::verify, nb::call_guard<Released>(),
           R"(Reads all files and compares them with the hashes that were stored when they were written.

Raises:
    Error: a file has changed (DAMAGED). The message names the file.)")
      .def("read", &read, "name"_a, nb::kw_only(), "slot"_a = "", "out"_a = nb::none(),
           nb::sig("def read(self, name: str, *, slot: str = '', out: Array | None = None) -> Array"),
           R"(Reads a variable, or one of its optimizer slots, and returns the array that holds it.

Args:
    name: the name of the variable.
    slot: one of StoredVariable.slots. Empty: the values.
    out: the row-major array to read into, which is returned. None: a new NumPy array. It has the variable's dtype and
        shape; a slot is of float32, and has the shape (rows,) if it has one element for each row.

Raises:
    NotFound: there is no such variable or slot.
    TypeError, ValueError: `out` has another dtype or shape; or it is None and the variable is of bfloat16, which
        NumPy does not have.
    Error: the file cannot be read.)")
      .def(
          "__getitem__",
          [](const Checkpoint& self, const std::string& name) { return read(self, name, "", nb::none()); }, "name"_a,
          nb::sig("def __getitem__(self, name: str) -> numpy.typing.NDArray[typing.Any]"),
          "Reads the variable of that name into a new NumPy array, as read() does.")
      .def("state", &state, nb::sig("def state(self) -> dict[str, numpy.typing.NDArray[typing.Any]]"),
           "Reads all variables into new NumPy arrays, and returns them as a dict by name, as View.state() does for a "
           "job.");
}

}  // namespace

void add_checkpoint(nb::module_& module) {
  add_stored(module);
  nb::class_<Checkpoint> type(
      module, "Checkpoint",
      R"(A job's state in files: all variables at one moment, their optimizer state, and the training's progress.

    found = ps_shm.checkpoint.latest("runs")    # None if there is none
    w = found["w"]
    m = found.read("w", slot="m")               # an optimizer slot
    server = ps_shm.Server("job", restore=found.folder)

Opening one reads its description and checks that its files exist with their sizes; verify() reads them.

Args:
    folder: the folder of the checkpoint, such as runs/step-500.

Raises:
    Error: the folder holds no checkpoint, or a file has another size (DAMAGED); a file is missing; or this build does
        not know the format (INCOMPATIBLE).)");
  type.def(
          "__init__",
          [](Checkpoint* self, const std::filesystem::path& folder) { new (self) Checkpoint(folder.string()); },
          "folder"_a, nb::sig("def __init__(self, folder: str | os.PathLike[str]) -> None"))
      .def("__repr__", [](const Checkpoint& self) {
        return fmt::format("<checkpoint {} of step {}>", self.folder(), self.global_step());
      });
  add_checkpoint_facts(type);
  add_checkpoint_reading(type);
  module.def("save_checkpoint", &save, "job"_a, "folder"_a, "loss"_a.none(), "max_file_bytes"_a, "group"_a);
  module.def("latest_checkpoint", &latest, "folder"_a);
  module.def("write_checkpoint", &write, "folder"_a, "global_step"_a, "values"_a, "slots"_a,
             nb::sig("def write_checkpoint(folder: str, global_step: int, values: dict[str, A], slots: "
                     "dict[str, dict[str, typing.Any]]) -> str"));
}

}  // namespace ps_shm::python
