// The passes over a model that a bridge between boxes makes in a round (docs/boxes.md). Each reads and writes an array
// once, in blocks of shm::kBridgeBlock floats; one thread. The order of all additions is fixed and nothing is contracted
// to fused operations, so that all boxes get the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "shm/segment/layout.hpp"

namespace ps_shm::bridge {

// How differences travel between the boxes.
enum class Wire : std::uint8_t {
  kFloat32,
  kBFloat16,  // rounded to nearest, ties to even
  kInt8,      // 8 bits each, and a scale for each block: its largest magnitude / 127
};
// By its name: float32, bfloat16 or int8. Throws Error.
Wire wire_of(std::string_view name);
std::size_t block_bytes(Wire wire) noexcept;

// Encodes rows of `row_size` floats one by one: with int8, each has a scale of its own. Requires: the sizes fit.
std::size_t row_bytes(Wire wire, std::size_t row_size) noexcept;
void encode_rows(Wire wire, std::size_t row_size, std::span<const float> rows, std::span<std::byte> to) noexcept;
void decode_rows(Wire wire, std::size_t row_size, std::span<const std::byte> from, std::span<float> to) noexcept;

// What the outer rule makes of the mean G of the boxes' differences. With a momentum m, g = -G, m' = momentum m + g:
enum class OuterRule : std::uint8_t {
  kAdd,       // A' = A + rate G
  kMomentum,  // A' = A - rate m'
  kNesterov,  // A' = A - rate (g + momentum m'), as torch.optim.SGD(nesterov=True, dampening=0)
};
// By its name: add, momentum or nesterov. Throws Error.
OuterRule outer_rule_of(std::string_view name);

// Encodes what a box has done: D = values - from, for the blocks of one variable. `encoded` gets wire(D), `base` gets
// from + wire(D), unless it is empty, and `present` whether D has an element other than 0. Elements beyond values.size()
// count as equal. False: D has an element that is not finite.
//
// Requires: the others have present.size() blocks, and values.size() is at most as many floats.
bool cut(Wire wire, std::span<const float> values, std::span<const float> from, std::span<float> base,
         std::span<std::byte> encoded, std::span<std::uint8_t> present) noexcept;

// What a box sent of the blocks that are summed here.
struct Part {
  std::span<const std::byte> encoded;
  float weight;  // 0: it is left out
};

// Sums the parts in their order, in float32, each times its weight, and encodes the sum plus `residual`; the residual
// becomes what the encoding loses, and may be empty if it loses nothing. is_mean: divides by the sum of the weights; in
// a block that is `sparse`, each element by the weights of those boxes whose element is not 0. False: an element of the
// sum is not finite.
//
// Requires: all have sparse.size() blocks.
bool sum(Wire wire, std::span<const Part> parts, bool is_mean, std::span<const std::uint8_t> sparse,
         std::span<float> residual, std::span<std::byte> encoded) noexcept;

// Decodes blocks.
void decode(Wire wire, std::span<const std::byte> encoded, std::span<float> to) noexcept;

// The outer step on floats of whole blocks, in place. `momentum` is empty with kAdd.
void step(OuterRule rule, float rate, float momentum_factor, std::span<const float> mean, std::span<float> anchor,
          std::span<float> momentum) noexcept;

// Requires: whole blocks.
double sum_of_squares(std::span<const float> of) noexcept;

// to = anchor - base. False: all of it is 0.
bool subtract(std::span<const float> anchor, std::span<const float> base, std::span<float> to) noexcept;

}  // namespace ps_shm::bridge
