// What the bridge between boxes (ps_shm.bridge) has in shared memory, and its passes over a model. Not for programs.
#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "bridge/passes.hpp"
#include "calls.hpp"
#include "errors.hpp"
#include "guest.hpp"
#include "inspection/tables.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "shm/segment/bridge_state.hpp"
#include "update/hash.hpp"
#include "worker.hpp"
#include "worker/guest_rows.hpp"

namespace ps_shm::python {
namespace {

using namespace nb::literals;
using shm::BridgeState;
using shm::kBridgeBlock;

// The most keys of a table, and the floats of a row.
using TableSizes = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

BridgeState::Form form_of(std::uint64_t blocks, bridge::Wire wire, bridge::OuterRule rule, const TableSizes& tables) {
  BridgeState::Form form{blocks, bridge::block_bytes(wire), rule != bridge::OuterRule::kAdd, {}};
  for (const auto& [most, row_size] : tables)
    form.tables.push_back({most, row_size, bridge::row_bytes(wire, row_size)});
  return form;
}

struct Bridge {
  Bridge(const std::string& job, std::uint64_t instance, std::uint64_t blocks, const std::string& wire_name,
         const std::string& rule_name, TableSizes sizes)
      : wire(bridge::wire_of(wire_name)),
        rule(bridge::outer_rule_of(rule_name)),
        tables(std::move(sizes)),
        state(job, instance, form_of(blocks, wire, rule, tables)) {}

  bridge::Wire wire;
  bridge::OuterRule rule;
  TableSizes tables;
  BridgeState state;
};

template <class T>
nb::object array_of(nb::handle self, std::span<T> of, DType dtype) {
  return as_array(of.data(), dtype, {of.size()}, self, Use::kWrite);
}

void require_size(std::size_t found, std::size_t wanted, const char* what) {
  if (found != wanted) throw Error(fmt::format("{}: {} elements in place of {}", what, found, wanted));
}

// The blocks of a variable. Throws Error.
void check_blocks(const Bridge& self, std::uint64_t first, std::uint64_t blocks) {
  if (first > self.state.present().size() || blocks > self.state.present().size() - first)
    throw Error("the state has fewer blocks");
}

// `from`, and `base` unless it is empty, have all blocks.
bool cut(Bridge& self, nb::handle values, std::uint64_t first, std::span<const float> from, std::span<float> base) {
  const Array array(values, Use::kRead, "cut: the values");
  array.require_type(DType::kFloat32, "cut: the values");
  const std::uint64_t blocks = (array.size() + kBridgeBlock - 1) / kBridgeBlock;
  check_blocks(self, first, blocks);
  const Released release;
  const std::size_t bytes = bridge::block_bytes(self.wire), begin = first * kBridgeBlock, count = blocks * kBridgeBlock;
  return bridge::cut(
      self.wire, array.as<const float>(), from.subspan(begin, count), base.empty() ? base : base.subspan(begin, count),
      self.state.sum().subspan(first * bytes, blocks * bytes), self.state.present().subspan(first, blocks));
}

// The same from the base, which stays.
void cut_again(Bridge& self) {
  const Released release;
  bridge::cut(self.wire, self.state.base(), self.state.anchor(), {}, self.state.sum(), self.state.present());
}

// Of the first `bytes` of the sum, and of which blocks are present.
std::uint64_t checksum(const Bridge& self, std::size_t bytes) {
  require_size(std::min(bytes, self.state.sum().size()), bytes, "checksum: the sum");
  const Released release;
  return XXH3_64bits_withSeed(self.state.sum().data(), bytes,
                              XXH3_64bits(self.state.present().data(), self.state.present().size()));
}

std::uint64_t anchor_checksum(const Bridge& self) {
  const Released release;
  const std::span<const float> momentum = self.state.momentum();
  return XXH3_64bits_withSeed(self.state.anchor().data(), self.state.anchor().size_bytes(),
                              XXH3_64bits(momentum.data(), momentum.size_bytes()));
}

bool sum(const Bridge& self, const nb::list& parts, const std::vector<float>& weights, bool is_mean, nb::handle sparse,
         nb::handle residual, nb::handle out) {
  std::vector<Array> arrays;
  for (const nb::handle part : parts) arrays.emplace_back(part, Use::kRead, "sum: a part");
  const Array to(out, Use::kWrite, "sum: the result"), kinds(sparse, Use::kRead, "sum: the kinds of blocks");
  const Array lost(residual, Use::kWrite, "sum: the residual");
  lost.require_type(DType::kFloat32, "sum: the residual");
  const std::size_t blocks = kinds.bytes().size(), bytes = blocks * bridge::block_bytes(self.wire);
  require_size(weights.size(), arrays.size(), "sum: the weights");
  require_size(to.bytes().size(), bytes, "sum: the result");
  if (lost.size() != 0) require_size(lost.size(), blocks * kBridgeBlock, "sum: the residual");
  std::vector<bridge::Part> all;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    require_size(arrays[i].bytes().size(), bytes, "sum: a part");
    all.push_back({arrays[i].bytes(), weights[i]});
  }
  const Released release;
  return bridge::sum(self.wire, all, is_mean, kinds.as<const std::uint8_t>(), lost.as<float>(), to.bytes());
}

// The outer step from the sum, whose blocks are those that are present, one after the other. Those and the blocks from
// `begin` to `end` take it. Returns the sum of the mean's squares.
double step(Bridge& self, float rate, float momentum, nb::handle sparse, std::uint64_t begin, std::uint64_t end) {
  const Array kinds(sparse, Use::kRead, "step: the kinds of blocks");
  require_size(kinds.bytes().size(), self.state.present().size(), "step: the kinds of blocks");
  const Released release;
  const std::span<const std::uint8_t> is_sparse = kinds.as<const std::uint8_t>(), present = self.state.present();
  const std::size_t bytes = bridge::block_bytes(self.wire);
  std::vector<std::uint64_t> place(present.size());  // in the sum
  std::uint64_t count = 0;
  for (std::size_t k = 0; k < present.size(); ++k) place[k] = present[k] != 0 ? count++ : 0;
  double squares = 0;
  self.state.replace([&](std::uint64_t first, std::span<float> anchor, std::span<float> velocity) {
    std::array<float, kBridgeBlock> mean;
    for (std::size_t k = 0; k < anchor.size() / kBridgeBlock; ++k) {
      const std::uint64_t block = first + k;
      if (present[block] == 0 && (block < begin || block >= end)) continue;
      if (present[block] != 0)
        bridge::decode(self.wire, self.state.sum().subspan(place[block] * bytes, bytes), mean);
      else
        std::fill(mean.begin(), mean.end(), 0.0F);
      squares += bridge::sum_of_squares(mean);
      const bool has_momentum = is_sparse[block] == 0;
      bridge::step(has_momentum ? self.rule : bridge::OuterRule::kAdd, has_momentum ? rate : 1.0F, momentum, mean,
                   anchor.subspan(k * kBridgeBlock, kBridgeBlock),
                   velocity.empty() ? velocity : velocity.subspan(k * kBridgeBlock, kBridgeBlock));
    }
  });
  return squares;
}

// An array of a table: the first `count` elements, which get memory. Rows have a second axis.
nb::object table_array(nb::handle self, std::size_t table, std::uint32_t which, std::uint64_t count) {
  using Kind = BridgeState::Array;
  auto& bridge = nb::cast<Bridge&>(self);
  const auto kind = static_cast<Kind>(which);
  if (table >= bridge.tables.size() || which >= static_cast<std::uint32_t>(Kind::kCount_) ||
      count > bridge.tables[table].first)
    throw Error("the state has no such array");
  bridge.state.reserve(table, kind, count);
  const std::byte* const data = bridge.state.array(table, kind).data();
  if (kind == Kind::kAnchor || kind == Kind::kBase)
    return as_array(data, DType::kFloat32, {count, bridge.tables[table].second}, self, Use::kWrite);
  if (kind == Kind::kCutRows || kind == Kind::kLastRows || kind == Kind::kSumRows)
    return as_array(data, DType::kUint8, {count, bridge.state.element_bytes(table, kind)}, self, Use::kWrite);
  return as_array(data, DType::kUint64, {count}, self, Use::kWrite);
}

nb::object encode_rows(const std::string& wire_name, nb::handle rows) {
  const bridge::Wire wire = bridge::wire_of(wire_name);
  const Array from(rows, Use::kRead, "encode_rows: the rows");
  from.require_type(DType::kFloat32, "encode_rows: the rows");
  if (from.shape().size() != 2) throw Error("encode_rows: the rows are no matrix");
  const std::size_t row_size = from.shape()[1];
  nb::object encoded = new_array(DType::kUint8, {from.shape()[0], bridge::row_bytes(wire, row_size)});
  const Array to(encoded, Use::kWrite, "encode_rows: the result");
  const Released release;
  bridge::encode_rows(wire, row_size, from.as<const float>(), to.bytes());
  return encoded;
}

nb::object decode_rows(const std::string& wire_name, std::uint64_t row_size, nb::handle encoded) {
  const bridge::Wire wire = bridge::wire_of(wire_name);
  const Array from(encoded, Use::kRead, "decode_rows: the rows");
  const std::size_t bytes = bridge::row_bytes(wire, row_size), count = from.bytes().size() / bytes;
  require_size(from.bytes().size(), count * bytes, "decode_rows: the rows");
  nb::object rows = new_array(DType::kFloat32, {count, row_size});
  const Array to(rows, Use::kWrite, "decode_rows: the result");
  const Released release;
  bridge::decode_rows(wire, row_size, from.bytes(), to.as<float>());
  return rows;
}

// What a row of each key begins with.
nb::object initial_rows(std::uint64_t seed, float range, std::uint64_t row_size, nb::handle keys) {
  const Array of(keys, Use::kRead, "initial_rows: the keys");
  of.require_type(DType::kUint64, "initial_rows: the keys");
  nb::object rows = new_array(DType::kFloat32, {of.size(), row_size});
  const Array to(rows, Use::kWrite, "initial_rows: the result");
  const Released release;
  float* row = to.as<float>().data();
  for (const std::uint64_t key : of.as<const std::uint64_t>()) {
    update::for_initial_values(seed, range, row_size, key, [&](std::uint64_t i, float value) { row[i] = value; });
    row += row_size;
  }
  return rows;
}

template <class T>
nb::object copied(const std::vector<T>& from, DType dtype, const Shape& shape) {
  nb::object made = new_array(dtype, shape);
  const Array to(made, Use::kWrite, "the result");
  std::copy(from.begin(), from.end(), to.as<T>().data());
  return made;
}

// Keys, rows and marks.
nb::tuple arrays_of(const MarkedRows& rows, std::uint64_t row_size) {
  const std::size_t count = rows.keys.size();
  return nb::make_tuple(copied(rows.keys, DType::kUint64, {count}),
                        copied(rows.values, DType::kFloat32, {count, row_size}),
                        copied(rows.marks, DType::kUint32, {count}));
}

// A table of a job, for the guest that has joined it.
struct GuestTable {
  SharedRank rank;
  GuestRows rows;
};

// Throws Error if the job has no such table.
TableInfo table_of(const std::string& job, const std::string& name) {
  std::vector<std::string> names;
  for (TableInfo& info : JobView(job).tables()) {
    if (info.spec.name == name) return std::move(info);
    names.push_back(info.spec.name);
  }
  fail_not_found(fmt::format("job '{}'", job), "table", name, names);
}

GuestTable guest_table(const GuestHandle& guest, const std::string& name) {
  const Turn turn(*guest.rank);
  Worker& worker = guest.rank->worker;
  return {guest.rank, GuestRows(worker.table(table_of(worker.config().job, name).spec))};
}

nb::tuple changed_since(GuestTable& self, std::uint32_t since) {
  MarkedRows rows;
  std::uint32_t version = 0;
  {
    const Turn turn(*self.rank);
    version = self.rows.changed_since(since, rows);
  }
  return nb::make_tuple(arrays_of(rows, self.rows.row_size()), version);
}

// The rows of these keys, their marks, and whether there is such a row.
nb::tuple read_rows(GuestTable& self, nb::handle keys) {
  const Array of(keys, Use::kRead, "read: the keys");
  of.require_type(DType::kUint64, "read: the keys");
  nb::object rows = new_array(DType::kFloat32, {of.size(), self.rows.row_size()}),
             marks = new_array(DType::kUint32, {of.size()}), found = new_array(DType::kUint8, {of.size()});
  const Array values(rows, Use::kWrite, "rows"), all(marks, Use::kWrite, "marks"), flags(found, Use::kWrite, "found");
  {
    const Turn turn(*self.rank);
    self.rows.read(of.as<const std::uint64_t>(), values.as<float>(), all.as<std::uint32_t>(), flags.as<std::uint8_t>());
  }
  return nb::make_tuple(rows, marks, found);
}

// How many rows were in doubt, and for how many there was no room.
nb::tuple give(GuestTable& self, std::uint32_t ticket, nb::handle keys, nb::handle values, nb::object bases) {
  const Array of(keys, Use::kRead, "give: the keys"), wanted(values, Use::kRead, "give: the rows");
  const bool resets = bases.is_none();
  const Array from(resets ? values : nb::handle(bases), Use::kRead, "give: the bases");
  of.require_type(DType::kUint64, "give: the keys");
  wanted.require(DType::kFloat32, {of.size(), self.rows.row_size()}, "give: the rows");
  from.require(DType::kFloat32, {of.size(), self.rows.row_size()}, "give: the bases");
  if (ticket == 0 || ticket > GuestRows::kMaxTicket) throw Error("give: the ticket");
  GuestRows::Given given;
  {
    const Turn turn(*self.rank);
    given = self.rows.give(ticket, resets ? GuestRows::How::kReset : GuestRows::How::kAdd, of.as<const std::uint64_t>(),
                           wanted.as<const float>(), from.as<const float>());
  }
  return nb::make_tuple(given.in_doubt, given.absent);
}

nb::tuple read_table(const TableReader& self, std::uint64_t row_size) {
  MarkedRows rows;
  for (const TableRow& row : self.rows(rows.marks)) {
    require_size(row.values.size(), row_size, "rows: a row");
    rows.keys.push_back(row.key);
    rows.values.insert(rows.values.end(), row.values.begin(), row.values.end());
  }
  return arrays_of(rows, row_size);
}

// How a table of the job begins its rows: seed, range; its most rows and the type of their elements.
nb::tuple table_facts(const std::string& job, const std::string& name) {
  const TableSpec spec = table_of(job, name).spec;
  return nb::make_tuple(spec.seed, spec.initial_range, spec.max_rows, to_string(spec.dtype));
}

bool subtract(const Bridge& self, std::uint64_t first, nb::handle out) {
  const Array to(out, Use::kWrite, "subtract: the result");
  to.require_type(DType::kFloat32, "subtract: the result");
  check_blocks(self, first, (to.size() + kBridgeBlock - 1) / kBridgeBlock);
  const Released release;
  return bridge::subtract(self.state.anchor().subspan(first * kBridgeBlock, to.size()),
                          self.state.base().subspan(first * kBridgeBlock, to.size()), to.as<float>());
}

void add_arrays(nb::class_<Bridge>& type) {
  type.def_prop_ro(
          "text", [](const Bridge& self) { return self.state.text(); }, "The newest text; empty: none.")
      .def_prop_ro(
          "anchor",
          [](nb::handle self) { return array_of(self, nb::cast<Bridge&>(self).state.anchor(), DType::kFloat32); },
          nb::sig("def anchor(self) -> numpy.typing.NDArray[numpy.float32]"), "The anchor.")
      .def_prop_ro(
          "momentum",
          [](nb::handle self) { return array_of(self, nb::cast<Bridge&>(self).state.momentum(), DType::kFloat32); },
          nb::sig("def momentum(self) -> numpy.typing.NDArray[numpy.float32]"), "The outer momentum; may be empty.")
      .def_prop_ro(
          "base", [](nb::handle self) { return array_of(self, nb::cast<Bridge&>(self).state.base(), DType::kFloat32); },
          nb::sig("def base(self) -> numpy.typing.NDArray[numpy.float32]"), "The base.")
      .def_prop_ro(
          "present",
          [](nb::handle self) { return array_of(self, nb::cast<Bridge&>(self).state.present(), DType::kUint8); },
          nb::sig("def present(self) -> numpy.typing.NDArray[numpy.uint8]"), "For each block, whether the sum has it.")
      .def_prop_ro(
          "sum", [](nb::handle self) { return array_of(self, nb::cast<Bridge&>(self).state.sum(), DType::kUint8); },
          nb::sig("def sum(self) -> numpy.typing.NDArray[numpy.uint8]"), "The sum, or what this box sends, encoded.");
}

void add_rounds(nb::class_<Bridge>& type) {
  type.def(
          "write",
          [](Bridge& self, const std::string& text) {
            if (text.size() > shm::kBridgeTextBytes) throw Error("the text is longer than the segment allows");
            self.state.write(text);
          },
          "text"_a, "Replaces the text.")
      .def(
          "rewind", [](Bridge& self) { self.state.rewind(); }, "Lets step() begin at the first part.")
      .def(
          "remove", [](Bridge& self) { self.state.remove(); }, "Removes the file.")
      .def(
          "cut",
          [](Bridge& self, nb::handle values, std::uint64_t first) {
            return cut(self, values, first, self.state.anchor(), self.state.base());
          },
          "values"_a, "first"_a, nb::sig("def cut(self, values: Array, first: int) -> bool"),
          "Encodes values - anchor of a variable, from block `first` on, into `sum`, and sets `base` and `present`. "
          "False: "
          "it is not finite.")
      .def(
          "last_cut",
          [](Bridge& self, nb::handle values, std::uint64_t first, bool from_base) {
            return cut(self, values, first, from_base ? self.state.base() : self.state.anchor(), {});
          },
          "values"_a, "first"_a, "from_base"_a,
          nb::sig("def last_cut(self, values: Array, first: int, from_base: bool) -> bool"),
          "The same without a new base, and if requested from the base in place of the anchor.")
      .def("cut_again", &cut_again, "Encodes base - anchor into `sum`, and sets `present`.")
      .def("checksum", &checksum, "bytes"_a, "A checksum of the first `bytes` of `sum`, and of `present`.")
      .def_prop_ro("anchor_checksum", &anchor_checksum, "A checksum of the anchor and the momentum.")
      .def(
          "add_up", &sum, "parts"_a, "weights"_a, "is_mean"_a, "sparse"_a, "residual"_a, "out"_a,
          nb::sig(
              "def add_up(self, parts: list[typing.Any], weights: list[float], is_mean: bool, sparse: Array, residual: "
              "Array, "
              "out: Array) -> bool"),
          "Sums encoded blocks of all boxes. False: it is not finite.")
      .def(
          "step", &step, "rate"_a, "momentum"_a, "sparse"_a, "begin"_a, "end"_a,
          nb::sig("def step(self, rate: float, momentum: float, sparse: Array, begin: int, end: int) -> float"),
          "Makes the outer step, or the rest of it, of the blocks that are present and of those from `begin` to `end`. "
          "Returns the sum of the mean's squares.")
      .def("subtract", &subtract, "first"_a, "out"_a, nb::sig("def subtract(self, first: int, out: Array) -> bool"),
           "out = anchor - base of a variable, from block `first` on. False: all of it is 0.");
}

void add_row_codecs(nb::class_<Bridge>& type) {
  type.def(
          "table_array",
          [](nb::handle self, std::size_t table, std::uint32_t which, std::uint64_t count) {
            return table_array(self, table, which, count);
          },
          "table"_a, "which"_a, "count"_a,
          nb::sig("def table_array(self, table: int, which: int, count: int) -> numpy.typing.NDArray[typing.Any]"),
          "The first elements of an array of a table: keys (0), anchor (1), base (2), keys and rows of the cut (3, 4), "
          "of "
          "the last cut (5, 6) and of the sum (7, 8).")
      .def_static(
          "hash",
          [](nb::handle of, std::uint64_t seed) {
            const Array array(of, Use::kRead, "hash: the array");
            const Released release;
            return XXH3_64bits_withSeed(array.bytes().data(), array.bytes().size(), seed);
          },
          "array"_a, "seed"_a, nb::sig("def hash(array: Array, seed: int) -> int"), "A checksum of an array's bytes.")
      .def_static("encode_rows", &encode_rows, "wire"_a, "rows"_a,
                  nb::sig("def encode_rows(wire: str, rows: Array) -> numpy.typing.NDArray[numpy.uint8]"),
                  "Encodes rows, each by itself.")
      .def_static(
          "decode_rows", &decode_rows, "wire"_a, "row_size"_a, "encoded"_a,
          nb::sig("def decode_rows(wire: str, row_size: int, encoded: Array) -> numpy.typing.NDArray[numpy.float32]"),
          "The opposite.")
      .def_static("initial_rows", &initial_rows, "seed"_a, "range"_a, "row_size"_a, "keys"_a,
                  nb::sig("def initial_rows(seed: int, range: float, row_size: int, keys: Array) -> "
                          "numpy.typing.NDArray[numpy.float32]"),
                  "What the rows of these keys begin with.")
      .def_static("table_facts", &table_facts, "job"_a, "name"_a,
                  nb::sig("def table_facts(job: str, name: str) -> tuple[int, float, int, str]"),
                  "A table's seed and range of initial values, its most rows, and the type of their elements.")
      .def_prop_ro_static(
          "BLOCK", [](nb::handle) { return kBridgeBlock; }, "The floats of a block.");
}

void add_bridge_tables(nb::module_& module) {
  nb::class_<GuestTable>(module, "BridgeTable", "A table by key, for a guest of its job. For ps_shm.bridge.")
      .def(
          "__init__",
          [](GuestTable* self, const GuestHandle& guest, const std::string& name) {
            new (self) GuestTable(guest_table(guest, name));
          },
          "guest"_a, "name"_a)
      .def("changed_since", &changed_since, "since"_a,
           nb::sig("def changed_since(self, since: int) -> tuple[tuple[numpy.typing.NDArray[numpy.uint64], "
                   "numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.uint32]], int]"),
           "Keys, rows and marks of the rows that have changed, and what to ask with next time.")
      .def("read", &read_rows, "keys"_a,
           nb::sig("def read(self, keys: Array) -> tuple[numpy.typing.NDArray[numpy.float32], "
                   "numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.uint8]]"),
           "The rows of these keys, their marks, and which of them there are.")
      .def("give", &give, "ticket"_a, "keys"_a, "rows"_a, "bases"_a = nb::none(),
           nb::sig("def give(self, ticket: int, keys: Array, rows: Array, bases: typing.Optional[Array] = None) -> "
                   "tuple[int, int]"),
           "Adds to the table's rows what they lack of `rows`, once for each ticket; without bases it assigns them. "
           "Returns "
           "how many rows were in doubt, and for how many keys there was no room.");
  nb::class_<TableReader>(module, "TableReader", "The rows of a table, also when its job is over. For ps_shm.bridge.")
      .def(nb::init<const std::string&, const std::string&>(), "job"_a, "table"_a)
      .def("rows", &read_table, "row_size"_a,
           nb::sig("def rows(self, row_size: int) -> tuple[numpy.typing.NDArray[numpy.uint64], "
                   "numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.uint32]]"),
           "Keys, rows and marks.");
}

}  // namespace

void add_bridge(nb::module_& module) {
  nb::class_<Bridge> type(module, "BridgeState",
                          "What a bridge between boxes keeps in shared memory. For ps_shm.bridge.");
  type.def(nb::init<const std::string&, std::uint64_t, std::uint64_t, const std::string&, const std::string&,
                    TableSizes>(),
           "job"_a, "instance"_a, "blocks"_a, "wire"_a, "rule"_a, "tables"_a)
      .def_static(
          "look",
          [](const std::string& job, std::uint64_t instance) {
            const std::optional<BridgeState::Seen> seen = BridgeState::look(job, instance);
            return seen ? seen->text : std::string();
          },
          "job"_a, "instance"_a, "The newest text of that job's state, which another process may have; empty: none.");
  add_arrays(type);
  add_rounds(type);
  add_row_codecs(type);
  add_bridge_tables(module);
}

}  // namespace ps_shm::python
