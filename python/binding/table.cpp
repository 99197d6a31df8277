#include "ps_shm/table.hpp"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>
#include <vector>

#include "config/setting.hpp"
#include "ps_shm/errors.hpp"
#include "records.hpp"
#include "settings.hpp"
#include "worker.hpp"

namespace ps_shm::python {
namespace {

using namespace nb::literals;

struct NamedTable {
  SharedRank rank;
  Table table;
  std::uint64_t evicted_since;  // the version from which pop_evicted() goes on
};

// What export() returns.
struct Exported {
  nb::object keys, rows, state, evicted;
  TableDump dump;
};

// Keys as given: a negative one is the unsigned number of the same bits.
class Keys {
 public:
  Keys(const NamedTable& self, nb::handle given, const char* verb)
      : about_(fmt::format("{} of table '{}': ", verb, self.table.name())), array_(given, Use::kRead, about_ + "keys") {
    if (array_.dtype() != DType::kUint64) array_.require_type(DType::kInt64, about_ + "keys");
  }
  std::span<const std::uint64_t> all() const noexcept { return array_.as<const std::uint64_t>(); }
  const Shape& shape() const noexcept { return array_.shape(); }
  Shape shape_of_rows(std::uint64_t width) const {
    Shape shape = array_.shape();
    shape.push_back(width);
    return shape;
  }
  Shape shape_of_rows(const NamedTable& self) const { return shape_of_rows(self.table.row_size()); }
  Array floats(std::uint64_t width, nb::handle given, Use use, const char* what) const {
    Array array(given, use, about_ + what);
    array.require(DType::kFloat32, shape_of_rows(width), about_ + what);
    return array;
  }
  Array rows(const NamedTable& self, nb::handle given, Use use, const char* what) const {
    return floats(self.table.row_size(), given, use, what);
  }

 private:
  std::string about_;
  Array array_;
};

std::span<bool> bools(const Array& array) { return array.as<bool>(); }

nb::object table(const WorkerHandle& self, const std::string& name, std::uint64_t row_size, std::uint64_t max_rows,
                 std::optional<std::string> rule, const std::string& evict, std::optional<double> ttl,
                 std::uint32_t admit_after, bool touch_on_pull, float initial_range, std::uint64_t seed,
                 float regularize, float lr_scale, nb::object dtype) {
  TableSpec spec{.name = name, .row_size = row_size, .dtype = dtype_of(dtype), .max_rows = max_rows, .rule = {}};
  if (rule) config::call_for("rule", [&] { spec.rule = parse<UpdateRule>(*rule); });
  config::call_for("evict", [&] { spec.evict = parse<Evict>(evict); });
  spec.ttl = ttl.value_or(0);
  spec.admit_after = admit_after;
  spec.touch_on_pull = touch_on_pull;
  spec.initial_range = initial_range;
  spec.seed = seed;
  spec.regularize = regularize;
  spec.lr_scale = lr_scale;
  std::optional<Table> made;
  std::uint64_t version = 0;
  {
    const Turn turn(*self.rank);
    made = self.use().table(spec);
    version = made->dump(0, {}).version;
  }
  return nb::cast(NamedTable{self.rank, *made, version});
}

nb::object pull(NamedTable& self, nb::handle given, nb::object out, bool create) {
  const Keys keys(self, given, "pull");
  if (out.is_none()) out = new_array(DType::kFloat32, keys.shape_of_rows(self));
  const nb::object found = new_array(DType::kBool, keys.shape());
  const Array rows = keys.rows(self, out, Use::kWrite, "out"), flags(found, Use::kWrite, "found");
  {
    const Turn turn(*self.rank);
    self.table.pull(keys.all(), rows.as<float>(), bools(flags), create);
  }
  return nb::make_tuple(out, found);
}

PushedKeys push(NamedTable& self, nb::handle given, nb::handle gradients) {
  const Keys keys(self, given, "push");
  const Array array = keys.rows(self, gradients, Use::kRead, "the gradients");
  const Turn turn(*self.rank);
  return self.table.push(keys.all(), array.as<const float>());
}

PushedKeys assign(NamedTable& self, nb::handle given, nb::handle values, nb::handle state) {
  const Keys keys(self, given, "assign");
  const Array array = keys.rows(self, values, Use::kRead, "the values");
  std::optional<Array> slots;
  if (!state.is_none()) slots.emplace(keys.floats(self.table.state_size(), state, Use::kRead, "the state"));
  const Turn turn(*self.rank);
  return self.table.assign(keys.all(), array.as<const float>(),
                           slots ? slots->as<const float>() : std::span<const float>());
}

nb::object contains(NamedTable& self, nb::handle given) {
  const Keys keys(self, given, "contains");
  const nb::object found = new_array(DType::kBool, keys.shape());
  const Array flags(found, Use::kWrite, "found");
  const Turn turn(*self.rank);
  self.table.contains(keys.all(), bools(flags));
  return found;
}

void prefetch(NamedTable& self, nb::handle given) {
  const Keys keys(self, given, "prefetch");
  const Turn turn(*self.rank);
  self.table.prefetch(keys.all());
}

std::uint64_t evict(NamedTable& self, nb::handle given) {
  const Keys keys(self, given, "evict");
  const Turn turn(*self.rank);
  return self.table.evict(keys.all());
}

std::uint64_t expire(NamedTable& self) {
  const Turn turn(*self.rank);
  return self.table.expire();
}

TableStatistics statistics(const NamedTable& self) {
  const Turn turn(*self.rank);
  return self.table.statistics();
}

// An array of these values, which are not copied.
template <class T>
nb::object array_of(std::vector<T>&& values, DType dtype, const Shape& shape) {
  if (values.empty()) values.reserve(1);  // an array has an address
  auto* const kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* of) noexcept { delete static_cast<std::vector<T>*>(of); });
  return as_array(kept->data(), dtype, shape, owner, Use::kWrite);
}

Exported export_rows(NamedTable& self, std::uint64_t since, bool with_state) {
  std::vector<std::uint64_t> keys, evicted;
  std::vector<float> rows, state;
  TableDump dump;
  {
    const Turn turn(*self.rank);
    if (since == 0) {  // so that nothing is moved as they grow; memory comes as it is written to
      const std::uint64_t rows_now = self.table.statistics().rows, most = rows_now + rows_now / 16;
      keys.reserve(most), rows.reserve(most * self.table.row_size());
      if (with_state) state.reserve(most * self.table.state_size());
    }
    dump = self.table.dump(
        since,
        [&](const TableRow& row) {
          keys.push_back(row.key);
          rows.insert(rows.end(), row.values.begin(), row.values.end());
          if (with_state) state.insert(state.end(), row.state.begin(), row.state.end());
        },
        [&](std::uint64_t key) { evicted.push_back(key); });
  }
  const std::uint64_t count = keys.size(), gone = evicted.size();
  Exported all{.keys = array_of(std::move(keys), DType::kUint64, {count}),
               .rows = array_of(std::move(rows), DType::kFloat32, {count, self.table.row_size()}),
               .state = nb::none(),
               .evicted = array_of(std::move(evicted), DType::kUint64, {gone}),
               .dump = dump};
  if (with_state) all.state = array_of(std::move(state), DType::kFloat32, {count, self.table.state_size()});
  return all;
}

nb::object pop_evicted(NamedTable& self) {
  std::vector<std::uint64_t> evicted;
  TableDump dump;
  {
    const Turn turn(*self.rank);
    dump = self.table.dump(self.evicted_since, {}, [&](std::uint64_t key) { evicted.push_back(key); });
    self.evicted_since = dump.version;
  }
  if (dump.is_full)
    throw Error(fmt::format("table '{}': some of the keys that were evicted since the last call are forgotten; call "
                            "pop_evicted() more often, or compare with export().keys",
                            self.table.name()),
                ErrorCode::kExhausted);
  const std::uint64_t gone = evicted.size();
  return array_of(std::move(evicted), DType::kUint64, {gone});
}

void add_results(nb::module_& module) {
  nb::class_<PushedKeys>(module, "PushedKeys",
                         "What became of the keys of a push. Each is updated, unadmitted or refused.")
      .def_ro("updated", &PushedKeys::updated, "The number of keys whose rows have the gradient.")
      .def_ro("made", &PushedKeys::made, "The number of these that had no row before.")
      .def_ro("unadmitted", &PushedKeys::unadmitted, "The number of keys that were not pushed often enough yet.")
      .def_ro("refused", &PushedKeys::refused, "The number of keys for which there is no room.")
      .def("__repr__", [](const PushedKeys& self) {
        return fmt::format("PushedKeys(updated={}, made={}, unadmitted={}, refused={})", self.updated, self.made,
                           self.unadmitted, self.refused);
      });
  nb::class_<Exported>(module, "TableExport", "Rows of a table and evicted keys, as Table.export() returns them.")
      .def_ro("keys", &Exported::keys, nb::for_getter(nb::sig("def keys(self) -> numpy.typing.NDArray[numpy.uint64]")),
              "The keys of the rows.")
      .def_ro("rows", &Exported::rows, nb::for_getter(nb::sig("def rows(self) -> numpy.typing.NDArray[numpy.float32]")),
              "The rows, of shape (len(keys), row_size).")
      .def_ro("state", &Exported::state,
              nb::for_getter(nb::sig("def state(self) -> numpy.typing.NDArray[numpy.float32] | None")),
              "The optimizer's state of the rows, of shape (len(keys), state_size); None unless it was asked for.")
      .def_ro("evicted", &Exported::evicted,
              nb::for_getter(nb::sig("def evicted(self) -> numpy.typing.NDArray[numpy.uint64]")),
              "The keys that have lost their rows since the version that was given; empty if is_full.")
      .def_prop_ro(
          "version", [](const Exported& self) { return self.dump.version; }, "The version to export from next time.")
      .def_prop_ro(
          "is_full", [](const Exported& self) { return self.dump.is_full; },
          "Whether these are all rows, instead of the changes since a version.")
      .def("__repr__", [](const Exported& self) {
        return fmt::format("TableExport(rows={}, evicted={}, is_full={})", nb::len(self.keys), nb::len(self.evicted),
                           self.dump.is_full ? "True" : "False");
      });
  using Statistics = TableStatistics;
  nb::class_<Statistics> type(module, "TableStatistics",
                              "What was counted since a table was made, by all workers together.");
  add_figures(type);
  type.def("__repr__", [](const Statistics& self) {
    return fmt::format("TableStatistics(rows={}, max_rows={}, made={}, evicted={}, hits={}, misses={}, bytes={})",
                       self.rows, self.max_rows, self.made, self.evicted, self.hits, self.misses, self.bytes);
  });
}

void add_rows(nb::class_<NamedTable>& type) {
  type.def("pull", &pull, "keys"_a.none(), "out"_a = nb::none(), nb::kw_only(), "create"_a = false,
           nb::sig("def pull(self, keys: Array, out: Array | None = None, *, create: bool = False) -> tuple[Array, "
                   "numpy.typing.NDArray[numpy.bool_]]"),
           R"(Copies the rows of the keys. Returns the array that holds them, and which of the keys have a row.

A key without a row reads its initial values, which are a function of the key and the table's seed. Each row is the key's
throughout; each element is whole, two elements may be from different moments.

Args:
    keys: the keys.
    out: the array to copy into. None: a new NumPy array.
    create: afterwards make rows with the initial values for the keys that have none, as a push would: each counts once
        for `admit_after`, and is not made if it is not admitted or there is no room.

Progress: lock-free.)")
      .def("push", &push, "keys"_a.none(), "gradients"_a.none(),
           nb::sig("def push(self, keys: Array, gradients: Array) -> PushedKeys"),
           R"(Applies gradients[i] to the row of keys[i] by the table's rule, and makes rows as the table was told.

Gradients of repeated keys are summed first. Each admitted key's row is updated exactly once, also if it is evicted at the
same moment: then before that, or a new row is. The job's `clip_norm` limits the norm of all gradients of the call.

Args:
    keys: the keys.
    gradients: a row for each key.

Progress: lock-free.)")
      .def("assign", &assign, "keys"_a.none(), "values"_a.none(), "state"_a = nb::none(),
           nb::sig("def assign(self, keys: Array, values: Array, state: Array | None = None) -> PushedKeys"),
           R"(Sets the rows of the keys, and the optimizer's state of them.

Makes rows without regard to `admit_after`. Of values for repeated keys the last ones stay.

Args:
    keys: the keys.
    values: a row for each key.
    state: the state of each row, as export() gives it, of shape keys.shape + (state_size,). None: it begins anew.

Progress: lock-free.)")
      .def("contains", &contains, "keys"_a.none(),
           nb::sig("def contains(self, keys: Array) -> numpy.typing.NDArray[numpy.bool_]"),
           R"(Returns which of the keys have a row.

Args:
    keys: the keys.

Progress: lock-free.)")
      .def("prefetch", &prefetch, "keys"_a.none(), nb::sig("def prefetch(self, keys: Array) -> None"),
           R"(Prefetches the memory of the keys' rows, for a pull and a push of them soon.

Args:
    keys: the keys.

Progress: wait-free.)");
}

void add_row_lifetimes(nb::class_<NamedTable>& type) {
  type.def("evict", &evict, "keys"_a.none(), nb::sig("def evict(self, keys: Array) -> int"),
           R"(Takes the rows of the keys away, but for those that are being pushed. Returns how many.

Args:
    keys: the keys.

Progress: lock-free.)")
      .def("expire", &expire, R"(Evicts the rows that are older than `ttl` now, and returns how many.

It also frees what killed workers have left. Both happen anyway when rows are made.

Progress: lock-free; looks at every row.)")
      .def("export", &export_rows, "since"_a = 0, "state"_a = false,
           nb::sig("def export(self, since: int = 0, state: bool = False) -> TableExport"),
           R"(Returns the rows of the table, or what has changed since an earlier export.

    base = items.export()
    # ... later, as often as you like:
    change = items.export(since=base.version)
    for key in change.evicted: copy.pop(key, None)
    copy.update(zip(change.keys, change.rows))

Each row is a key's throughout; rows are of different moments. Pushes go on meanwhile: what happens during the call is in
it, or in the next one, or in both. An export and all later ones give the table once nobody pushes. If keys that were
evicted since are forgotten, it has all rows (is_full).

Args:
    since: the version of an earlier export. 0: all rows.
    state: whether to return the optimizer's state, too.

Progress: lock-free; looks at every row.)")
      .def("pop_evicted", &pop_evicted, nb::sig("def pop_evicted(self) -> numpy.typing.NDArray[numpy.uint64]"),
           R"(Returns the keys that have lost their rows since the last call, or since this object was made.

A key that has a row again by now is not among them. Each object has its own account, so all workers may call it.

Raises:
    Error: keys that were evicted since are forgotten (EXHAUSTED). The next call begins anew.

Progress: lock-free.)")
      .def("statistics", &statistics, "Returns what was counted since the table was made. Wait-free.")
      .def("__repr__", [](const NamedTable& self) {
        return fmt::format("Table('{}', row_size={})", self.table.name(), self.table.row_size());
      });
}

}  // namespace

void add_table_method(nb::class_<WorkerHandle>& type) {
  type.def("table", &table, "name"_a, "row_size"_a, "max_rows"_a, nb::kw_only(), "rule"_a = nb::none(),
           "evict"_a = "lfu", "ttl"_a = nb::none(), "admit_after"_a = 1, "touch_on_pull"_a = false,
           "initial_range"_a = 0.05F, "seed"_a = 0, "regularize"_a = 0.0F, "lr_scale"_a = 1.0F, "dtype"_a = "float32",
           nb::sig("def table(self, name: str, row_size: int, max_rows: int, *, rule: str | None = None, evict: str "
                   "= 'lfu', ttl: float | None = None, admit_after: int = 1, touch_on_pull: bool = False, "
                   "initial_range: float = 0.05, seed: int = 0, regularize: float = 0.0, lr_scale: float = 1.0, dtype: "
                   "DType = 'float32') -> Table"),
           R"(Returns the table by key of that name. The first worker that declares it creates it.

All workers must declare a table alike. Its rows are in checkpoints and not in snapshots; Table.export() and
Table.assign() save and restore them, too.

Args:
    name: as of a variable; tables and variables have separate names.
    row_size: the number of elements in a row.
    max_rows: the most rows that there may be, at least 64 for each part of the table. Memory is taken as rows come.
    rule: the update rule, as of a variable. None: the job's optimizer.
    evict: which rows make room in a full table: those that were least frequently ("lfu") or least recently ("lru")
        pushed, or the oldest ("age"). "none": none; pushes of new keys are refused and counted.
    ttl: rows that were not used for so many seconds are evicted (with "age": that are older). None: none.
    admit_after: a key gets a row with its push of that number, at most 255. Pushes before are dropped and counted.
    touch_on_pull: whether a pull counts as a use.
    initial_range: a key without a row has values that are uniform in [-initial_range, initial_range).
    seed: these values are a function of the seed and the key alone.
    regularize: multiplies the job's l2, l1 and weight_decay for this table. 0: they do not apply.
    lr_scale: multiplies the job's learning rate for this table.
    dtype: of the rows, "float32" or "bfloat16". Rows of bfloat16, with the optimizer's state beside their elements, take
        half the memory; they are given and returned in float32, and pushes round them stochastically.

Raises:
    Error: the table exists with another specification (INCOMPATIBLE); the specification is invalid, as with a `rule` or
        `evict` that there is not, or the mode is sync (INVALID_ARGUMENT); the job can have no more tables (EXHAUSTED); /dev/shm is full (NO_SPACE).
    ValueError: there is no such dtype.
    JobFinished: the job ended while another worker restored the table.

Progress: lock-free; in a job that restores a checkpoint, waits for the worker that reads the table's rows.)");
}

void add_table(nb::module_& module) {
  add_results(module);
  nb::class_<NamedTable> type(module, "Table", R"(A table of rows by 64-bit keys, made by Worker.table().

    items = worker.table("items", 16, 1_000_000, rule="rowwise_adagrad")
    rows, found = items.pull(keys)
    items.push(keys, gradients_at(rows))        # gradients_at: a function of your own

Keys are arrays of int64 or uint64, of any shape, in any order, and may repeat; a negative key is the unsigned number of
the same bits. Rows are float32 arrays of shape keys.shape + (row_size,). Arrays may be of NumPy, PyTorch (on the CPU) or
other packages with the buffer protocol or DLPack. Nothing is converted.

All methods raise:
    TypeError: an array has another dtype, is not row-major, is on another device, or is read-only where it is written.
    ValueError: an array has the wrong shape.
    Error: the worker has left, or the object belongs to the parent of a forked process (INVALID_STATE); the table is
        damaged (DAMAGED).)");
  type.def_prop_ro(
          "name", [](const NamedTable& self) { return self.table.name(); }, "The table's name.")
      .def_prop_ro(
          "row_size", [](const NamedTable& self) { return self.table.row_size(); }, "The number of floats in a row.")
      .def_prop_ro(
          "slots", [](const NamedTable& self) { return self.table.slots(); },
          "The names of the optimizer's slots. In the state of a row there are row_size floats for each of them, one "
          "slot "
          "after the other, but only one float for a slot that belongs to rows (rowwise_adagrad).")
      .def_prop_ro(
          "state_size", [](const NamedTable& self) { return self.table.state_size(); },
          "The number of floats of the optimizer's state in a row.");
  add_rows(type);
  add_row_lifetimes(type);
}

}  // namespace ps_shm::python
