// What the bridge between boxes (ps_shm.bridge) has in shared memory, and its passes over a model. Not for programs.
#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "bridge/passes.hpp"
#include "calls.hpp"
#include "ps_shm/errors.hpp"
#include "shm/segment/bridge_state.hpp"
#include "worker.hpp"

namespace ps_shm::python {
namespace {

using namespace nb::literals;
using shm::BridgeState;
using shm::kBridgeBlock;

struct Bridge {
  Bridge(const std::string& job, std::uint64_t instance, std::uint64_t blocks, const std::string& wire_name,
         const std::string& rule_name)
      : wire(bridge::wire_of(wire_name)),
        rule(bridge::outer_rule_of(rule_name)),
        state(job, instance, {blocks, bridge::block_bytes(wire), rule != bridge::OuterRule::kAdd}) {}

  bridge::Wire wire;
  bridge::OuterRule rule;
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

bool subtract(const Bridge& self, std::uint64_t first, nb::handle out) {
  const Array to(out, Use::kWrite, "subtract: the result");
  to.require_type(DType::kFloat32, "subtract: the result");
  check_blocks(self, first, (to.size() + kBridgeBlock - 1) / kBridgeBlock);
  const Released release;
  return bridge::subtract(self.state.anchor().subspan(first * kBridgeBlock, to.size()),
                          self.state.base().subspan(first * kBridgeBlock, to.size()), to.as<float>());
}

}  // namespace

void add_bridge(nb::module_& module) {
  nb::class_<Bridge>(module, "BridgeState", "What a bridge between boxes keeps in shared memory. For ps_shm.bridge.")
      .def(nb::init<const std::string&, std::uint64_t, std::uint64_t, const std::string&, const std::string&>(),
           "job"_a, "instance"_a, "blocks"_a, "wire"_a, "rule"_a)
      .def_static(
          "look",
          [](const std::string& job, std::uint64_t instance) {
            const std::optional<BridgeState::Seen> seen = BridgeState::look(job, instance);
            return seen ? seen->text : std::string();
          },
          "job"_a, "instance"_a, "The newest text of that job's state, which another process may have; empty: none.")
      .def_prop_ro(
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
          nb::sig("def sum(self) -> numpy.typing.NDArray[numpy.uint8]"), "The sum, or what this box sends, encoded.")
      .def(
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
           "out = anchor - base of a variable, from block `first` on. False: all of it is 0.")
      .def_prop_ro_static(
          "BLOCK", [](nb::handle) { return kBridgeBlock; }, "The floats of a block.");
}

}  // namespace ps_shm::python
