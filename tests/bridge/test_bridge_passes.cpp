// The passes of a bridge to other boxes, against plain arithmetic.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "bridge/passes.hpp"
#include "ps_shm/errors.hpp"

using namespace ps_shm;
using namespace ps_shm::bridge;

namespace {

constexpr std::size_t kBlock = shm::kBridgeBlock;

std::vector<float> noise(std::size_t count, std::uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> values(0, scale);
  std::vector<float> all(count);
  for (float& one : all) one = values(random);
  return all;
}

struct Cut {
  Cut(Wire wire, std::size_t blocks) : base(blocks * kBlock), encoded(blocks * block_bytes(wire)), present(blocks) {}
  std::vector<float> base;
  std::vector<std::byte> encoded;
  std::vector<std::uint8_t> present;
};

std::vector<float> decoded(Wire wire, const std::vector<std::byte>& encoded) {
  std::vector<float> all(encoded.size() / block_bytes(wire) * kBlock);
  decode(wire, encoded, all);
  return all;
}

}  // namespace

TEST_CASE("bridge passes: a cut keeps what the wire format keeps, and says which blocks have changed") {
  const std::size_t count = 2 * kBlock + 100;  // three blocks, the last one in part
  for (const Wire wire : {Wire::kFloat32, Wire::kBFloat16, Wire::kInt8}) {
    std::vector<float> anchor = noise(3 * kBlock, 1), values(anchor.begin(), anchor.begin() + count);
    for (std::size_t i = 0; i < kBlock; ++i) values[i] += noise(kBlock, 2, 0.1F)[i];
    values[2 * kBlock + 50] += 1;
    Cut found(wire, 3);
    CHECK(cut(wire, values, anchor, found.base, found.encoded, found.present));
    CHECK(found.present == std::vector<std::uint8_t>{1, 0, 1});
    const std::vector<float> kept = decoded(wire, found.encoded);
    float largest = 0;
    for (std::size_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::abs(values[i] - anchor[i]));
    for (std::size_t i = 0; i < 3 * kBlock; ++i) {
      const float difference = i < count ? values[i] - anchor[i] : 0;
      const float lost = std::abs(kept[i] - difference);
      CHECK(lost <= (wire == Wire::kFloat32    ? 0.0F
                     : wire == Wire::kBFloat16 ? std::abs(difference) / 256
                                               : (i < kBlock ? largest : 1.0F) / 253));
      CHECK(found.base[i] == anchor[i] + kept[i]);
    }
    values[kBlock + 3] = std::numeric_limits<float>::infinity();
    CHECK(!cut(wire, values, anchor, found.base, found.encoded, found.present));
    values[kBlock + 3] = std::numeric_limits<float>::quiet_NaN();
    CHECK(!cut(wire, values, anchor, found.base, found.encoded, found.present));
  }
}

TEST_CASE("bridge passes: a sum is a mean by weights, and its residual is what the encoding lost") {
  const std::vector<std::uint8_t> sparse = {0, 1};
  for (const Wire wire : {Wire::kFloat32, Wire::kBFloat16, Wire::kInt8}) {
    std::vector<Cut> cuts;
    const std::vector<float> zero(2 * kBlock);
    for (std::uint32_t box = 0; box < 3; ++box) {
      std::vector<float> values = noise(2 * kBlock, 10 + box);
      for (std::size_t i = 0; i < kBlock; ++i)
        if (i % 3 != box) values[kBlock + i] = 0;  // each element of the second block is of one box
      cuts.emplace_back(wire, 2);
      CHECK(cut(wire, values, zero, cuts.back().base, cuts.back().encoded, cuts.back().present));
    }
    const Part parts[] = {{cuts[0].encoded, 1}, {cuts[1].encoded, 0}, {cuts[2].encoded, 3}};
    for (const bool is_mean : {true, false}) {
      std::vector<float> residual(2 * kBlock, 0.25F);
      std::vector<std::byte> out(2 * block_bytes(wire));
      CHECK(sum(wire, parts, is_mean, sparse, residual, out));
      const std::vector<float> kept = decoded(wire, out), a = decoded(wire, cuts[0].encoded),
                               c = decoded(wire, cuts[2].encoded);
      for (std::size_t i = 0; i < 2 * kBlock; ++i) {
        float expected = a[i] + c[i] * 3;
        const float weights = i < kBlock ? 4 : (a[i] != 0 ? 1.0F : 0.0F) + (c[i] != 0 ? 3.0F : 0.0F);
        if (is_mean && weights > 0) expected /= weights;
        expected += 0.25F;
        CHECK(std::abs(kept[i] + residual[i] - expected) <= 1e-6F * (1 + std::abs(expected)));
        if (wire == Wire::kFloat32) CHECK(kept[i] == expected);
      }
    }
  }
}

TEST_CASE("bridge passes: the outer rules are those of torch.optim.SGD") {
  const std::vector<float> mean = noise(kBlock, 5);
  for (const OuterRule rule : {OuterRule::kAdd, OuterRule::kMomentum, OuterRule::kNesterov}) {
    std::vector<float> anchor = noise(kBlock, 6), momentum = noise(kBlock, 7), before = anchor, velocity = momentum;
    step(rule, 0.7F, 0.9F, mean, anchor, rule == OuterRule::kAdd ? std::span<float>() : momentum);
    for (std::size_t i = 0; i < kBlock; ++i) {
      const double gradient = -double(mean[i]), next = 0.9 * double(velocity[i]) + gradient;
      const double expected = double(before[i]) - 0.7 * (rule == OuterRule::kAdd        ? gradient
                                                         : rule == OuterRule::kMomentum ? next
                                                                                        : gradient + 0.9 * next);
      CHECK(double(anchor[i]) == doctest::Approx(expected).epsilon(1e-5));
      if (rule != OuterRule::kAdd) CHECK(double(momentum[i]) == doctest::Approx(next).epsilon(1e-5));
    }
  }
}

TEST_CASE("bridge passes: one box gets its own cut back, whatever the wire format") {
  for (const Wire wire : {Wire::kFloat32, Wire::kBFloat16, Wire::kInt8}) {
    std::vector<float> anchor = noise(kBlock, 8);
    const std::vector<float> values = noise(kBlock, 9);
    Cut found(wire, 1);
    CHECK(cut(wire, values, anchor, found.base, found.encoded, found.present));
    step(OuterRule::kAdd, 1.0F, 0, decoded(wire, found.encoded), anchor, {});
    std::vector<float> difference(kBlock, 1);
    CHECK(!subtract(anchor, found.base, difference));  // nothing is left to be added
  }
}

TEST_CASE("bridge passes: a sum of squares") {
  const std::vector<float> all = noise(2 * kBlock, 11);
  double expected = 0;
  for (const float one : all) expected += double{one} * one;
  CHECK(sum_of_squares(all) == doctest::Approx(expected).epsilon(1e-12));
}

TEST_CASE("bridge passes: names") {
  CHECK(wire_of("int8") == Wire::kInt8);
  CHECK(outer_rule_of("nesterov") == OuterRule::kNesterov);
  CHECK_THROWS_AS(wire_of("int4"), Error);
  CHECK_THROWS_AS(outer_rule_of("adam"), Error);
}
