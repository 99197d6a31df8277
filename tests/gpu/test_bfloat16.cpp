// Rounding to bfloat16 during the transfer to host memory, and the way back.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gpu/tables.hpp"

namespace {

using namespace ps_shm::test;
using namespace ps_shm::device;
using ps_shm::kernels::SentPiece;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The nearest by distance, in float64; of two the even one.
std::uint16_t nearest_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto distance = [&](std::uint32_t upper) {
    const float there = std::bit_cast<float>(upper << 16);
    const double place = std::isinf(there) ? std::copysign(0x1.0p128, double(value)) : double(there);
    return std::abs(place - double(value));
  };
  const std::uint32_t below = bits >> 16, above = below + 1;
  if (std::isinf(value) || distance(below) < distance(above)) return static_cast<std::uint16_t>(below);
  if (distance(above) < distance(below)) return static_cast<std::uint16_t>(above);
  return static_cast<std::uint16_t>(below % 2 == 0 ? below : above);
}

std::vector<float> hard_to_round(std::size_t count) {
  std::vector<float> values{0.0F,
                            -0.0F,
                            kInfinity,
                            -kInfinity,
                            kNan,
                            -kNan,
                            std::bit_cast<float>(0x7f800001U),
                            std::bit_cast<float>(0xffffffffU),
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::lowest(),
                            std::numeric_limits<float>::denorm_min(),
                            -std::numeric_limits<float>::min() / 3};
  for (const std::uint32_t upper : {0x3f80U, 0x3f81U, 0x0001U, 0x0000U, 0x7f7fU, 0x7f7eU, 0xbf81U, 0x007fU})
    for (const std::uint32_t lower : {0x8000U, 0x7fffU, 0x8001U})
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
  const auto rest = random_floats(count, 6);
  values.insert(values.end(), rest.begin(), rest.end());
  values.resize(count);
  return values;
}

std::size_t wrongly_rounded(const std::vector<float>& from, const std::uint16_t* to) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < from.size(); ++i)
    wrong += (std::isnan(from[i]) ? (to[i] & 0x7fff) > 0x7f80 : to[i] == nearest_bfloat16(from[i])) ? 0 : 1;
  return wrong;
}

TEST_CASE("bfloat16: rounds to the nearest, ties to even, NaN stays NaN, for any size and alignment") {
  Bench bench;
  constexpr std::uint16_t kUntouched = 0x1234;
  for (const std::uint32_t count : {1U, 7U, 8U, 9U, 45U, 4097U, 20001U, 700001U})
    for (const std::size_t shift : {0, 1}) {
      CAPTURE(count);
      CAPTURE(shift);
      const auto values = hard_to_round(count);
      std::vector<float> shifted(shift, 0.0F);
      shifted.insert(shifted.end(), values.begin(), values.end());
      const auto from = bench.put(shifted);
      const auto sent = pinned(std::vector<std::uint16_t>(count + 8, kUntouched));
      const auto arrived = pinned<std::uint32_t>({0});
      const auto pieces = pinned<SentPiece>(
          {{.from = from.on_device() + shift, .to = sent.on_device() + shift, .count = count, .pad = 0}});
      bench.run(kernels().send_pieces(pieces.on_device(), 1, arrived.on_device(), true, nullptr,
                                      ps_shm::kernels::kSenders, bench.stream()));
      CHECK(wrongly_rounded(values, sent.on_host() + shift) == 0);
      CHECK(sent.host()[count + shift] == kUntouched);
      CHECK(arrived.host()[0] == 1);
    }
}

}  // namespace
