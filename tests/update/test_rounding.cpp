// Stochastic rounding to bfloat16: its expectation, its random bits, and updates of chunks that store bfloat16.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "support/rule_reference.hpp"
#include "update/bfloat16.hpp"
#include "update/dtypes.hpp"
#include "update/rules.hpp"

using namespace ps_shm;
using namespace ps_shm::update;

namespace {

constexpr std::uint32_t kRandom = 1 << 16;
constexpr std::size_t kCount = 701, kStride = 704;  // odd; more than two blocks of 256
constexpr float kRate = 0.25F;

float value_of(std::uint16_t bits) { return BFloat16{bits}; }
std::uint16_t bits_of(float value) {
  std::uint16_t bits;
  round_to_nearest(&bits, &value, 1);
  return bits;
}

Settings settings_for(UpdateRule rule, float ema) {
  Optimizer optimizer;
  optimizer.rule = rule;
  optimizer.l1 = optimizer.l2 = 0.01F;
  optimizer.weight_decay = 0.01F;
  optimizer.clip_value = 1.5F;
  optimizer.ema = ema;
  Settings settings = settings_of(optimizer, rule, 1.0F, DType::kBFloat16);
  settings.rounding = rounding_seed(1, "v");
  return settings;
}
Settings in_float32(Settings settings) {
  settings.dtype = DType::kFloat32;
  return settings;
}

// A chunk in both forms: bfloat16 with float32 slots, and float32.
struct Chunk {
  std::vector<float> stored, floats;
  std::size_t slots;

  explicit Chunk(std::size_t slot_count)
      : stored(kStride / 2 + slot_count * kStride, 7.0F), floats((1 + slot_count) * kStride), slots(slot_count) {}

  BFloat16Bits* values() { return reinterpret_cast<BFloat16Bits*>(stored.data()); }
  std::span<float> slot(std::size_t k) { return std::span(stored).subspan(kStride / 2 + k * kStride, kCount); }
  // Takes over the rounded values and the slots of the other form.
  void store(std::uint64_t key, std::uint64_t first) {
    for (std::size_t i = 0; i < kCount; ++i)
      values()[i] = round_by(floats[i], rounding_bits(key, static_cast<std::uint32_t>(first + i)));
    values()[kCount] = 0;
    for (std::size_t k = 0; k < slots; ++k)
      for (std::size_t i = 0; i < kCount; ++i) slot(k)[i] = floats[(k + 1) * kStride + i];
  }
  // What is used of it; the padding behind slots is left out.
  std::vector<float> used() {
    std::vector<float> all(stored.begin(), stored.begin() + (kCount + 1) / 2);
    for (std::size_t k = 0; k < slots; ++k) all.insert(all.end(), slot(k).begin(), slot(k).end());
    return all;
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Chunk first_chunk(const Settings& settings) {
  Chunk chunk(slots_per_element(settings));
  for (std::size_t i = 0; i < kCount; ++i) {
    chunk.values()[i] = bits_of(float(int(i % 29) - 14) / 7);
    chunk.floats[i] = value_of(chunk.values()[i]);
  }
  chunk.values()[kCount] = 0;
  initialise_slots(settings, kRate, chunk.stored.data(), chunk.stored.data() + kStride / 2, kStride, kCount);
  initialise_slots(in_float32(settings), kRate, chunk.floats.data(), chunk.floats.data() + kStride, kStride, kCount);
  return chunk;
}

std::vector<float> gradient_of(std::size_t seed) {
  std::vector<float> gradient(kCount);
  for (std::size_t i = 0; i < kCount; ++i) gradient[i] = float(int((i * 13 + seed * 7) % 101) - 50) / 30;
  return gradient;
}

std::vector<UpdateRule> versioned_rules() {
  return test::rules_where([](const Traits& traits) { return traits.works_versioned; });
}

}  // namespace

TEST_CASE("rounding: the mean over all random numbers is the value itself") {
  std::vector<float> values;
  for (const float sign : {1.0F, -1.0F})
    for (const std::uint32_t bits : {0x3f800000U, 0x3f800001U, 0x3f804000U, 0x3f80ffffU, 0x3fffffffU, 0x00000001U,
                                     0x00007fffU, 0x007fffffU, 0x00800000U, 0x12345678U, 0x7f7effffU, 0U})
      values.push_back(sign * std::bit_cast<float>(bits));
  for (const float value : values) {
    CAPTURE(value);
    double sum = 0;  // exact: 2^16 terms with 8 bits each, in a range of 2^24
    const auto below = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
    bool are_neighbours = true;
    for (std::uint32_t random = 0; random < kRandom; ++random) {
      const std::uint16_t rounded = round_by(value, random);
      are_neighbours = are_neighbours && (rounded == below || rounded == below + 1);
      sum += double(value_of(rounded));
    }
    CHECK(are_neighbours);
    CHECK(sum == double(value) * kRandom);
  }
}

TEST_CASE("rounding: what a bfloat16 can hold stays as it is, and NaN stays NaN") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::uint32_t random : {0U, 1U, 0x7fffU, 0xffffU}) {
    for (std::uint32_t bits = 0; bits < kRandom; ++bits) {
      const float value = value_of(static_cast<std::uint16_t>(bits));
      if (!std::isnan(value)) CHECK(round_by(value, random) == bits);
    }
    CHECK(value_of(round_by(infinity, random)) == infinity);
    CHECK(value_of(round_by(-infinity, random)) == -infinity);
    for (const std::uint32_t bits : {0x7f800001U, 0x7fffffffU, 0xff800001U, 0xffffffffU})
      CHECK(std::isnan(value_of(round_by(std::bit_cast<float>(bits), random))));
  }
}

TEST_CASE("rounding: random bits are spread evenly over elements, updates and variables") {
  const auto check_even = [](auto&& bits_at) {
    constexpr std::uint32_t kDraws = 1 << 18, kBins = 256, kMean = kDraws / kBins;
    std::vector<std::uint32_t> high(kBins), low(kBins);
    for (std::uint32_t i = 0; i < kDraws; ++i) {
      const std::uint32_t bits = bits_at(i);
      REQUIRE(bits < kRandom);
      ++high[bits >> 8], ++low[bits & 0xff];
    }
    for (std::uint32_t bin = 0; bin < kBins; ++bin)
      for (const std::uint32_t found : {high[bin], low[bin]})
        CHECK(std::abs(double(found) - kMean) < 6 * std::sqrt(double(kMean)));  // of six deviations
  };
  check_even([](std::uint32_t i) { return rounding_bits(rounding_key(rounding_seed(1, "v"), 0), i); });
  check_even([](std::uint32_t i) { return rounding_bits(rounding_key(rounding_seed(1, "v"), i), 3); });
  check_even([](std::uint32_t i) { return rounding_bits(rounding_key(rounding_seed(i, "v"), 0), 3); });
  CHECK(rounding_seed(1, "v") != rounding_seed(1, "w"));
  CHECK(rounding_seed(1, "v") != rounding_seed(2, "v"));
}

TEST_CASE("rounding: elements that are 2^32 apart have bits of their own") {
  const std::vector<float> values(64, 1.001F);
  std::vector<std::uint16_t> near(64), far(64);
  round_stochastically(near.data(), values.data(), 64, rounding_key(1, 0), 5);
  round_stochastically(far.data(), values.data(), 64, rounding_key(1, 0), (std::uint64_t{1} << 32) + 5);
  CHECK(near != far);
}

TEST_CASE("rounding: changes that are too small for a bfloat16 add up as often as they should") {
  constexpr std::uint64_t kUpdates = 1 << 14;
  constexpr float kStep = 0x1p-7F, kDelta = kStep / 8;  // from 1 the next bfloat16 is 2^-7 away
  Settings settings = settings_for(UpdateRule::kAdd, 0);
  std::vector<float> in(kStride / 2), out(kStride / 2);
  const std::vector<float> delta(kCount, kDelta);
  for (std::size_t i = 0; i < kCount; ++i) reinterpret_cast<BFloat16Bits*>(in.data())[i] = bits_of(1.0F);
  std::uint64_t ups = 0;
  std::vector<std::uint64_t> of_element(kCount);
  for (std::uint64_t update = 0; update < kUpdates; ++update) {
    apply(settings, {kRate, update}, out.data(), in.data(), kStride, delta.data(), 1.0F, kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      const bool is_up = value_of(reinterpret_cast<BFloat16Bits*>(out.data())[i]) == 1.0F + kStep;
      of_element[i] += is_up, ups += is_up;
    }
  }
  const double draws = double(kUpdates), deviation = std::sqrt(draws * 7 / 64);
  for (const std::uint64_t found : of_element) CHECK(std::abs(double(found) - draws / 8) < 6 * deviation);
  CHECK(std::abs(double(ups) - draws * kCount / 8) < 6 * deviation * std::sqrt(double(kCount)));
}

TEST_CASE("rounding: each rule computes what it does in float32, and then rounds") {
  const std::vector<float> gradients[] = {gradient_of(1), gradient_of(2), gradient_of(3)};
  for (const UpdateRule rule : versioned_rules())
    for (const float ema : {0.0F, 0.5F})
      for (std::size_t contributors = 0; contributors <= 3; ++contributors) {  // 0: apply()
        CAPTURE(to_string(rule));
        CAPTURE(ema);
        CAPTURE(contributors);
        const Settings settings = settings_for(rule, ema), plain = in_float32(settings);
        Chunk chunk = first_chunk(settings), next = chunk;
        CHECK(same_bits(chunk.used(), first_chunk(settings).used()));
        std::vector<Contribution> given;
        for (std::size_t i = 0; i < contributors; ++i) given.push_back({gradients[i].data(), i == 1 ? 0.5F : 1.0F});
        for (std::uint64_t update = 0; update < 4; ++update) {
          const Moment moment{kRate, update, 1000};
          next.values()[kCount] = 7;  // what a buffer had before
          if (contributors == 0) {
            apply(settings, moment, next.stored.data(), chunk.stored.data(), kStride, gradients[0].data(), 0.5F,
                  kCount);
            apply(plain, moment, next.floats.data(), chunk.floats.data(), kStride, gradients[0].data(), 0.5F, kCount);
          } else {
            apply_combined(settings, moment, next.stored.data(), chunk.stored.data(), kStride, given, kCount);
            apply_combined(plain, moment, next.floats.data(), chunk.floats.data(), kStride, given, kCount);
          }
          Chunk expected = next;
          expected.store(rounding_key(settings.rounding, update), moment.first);
          CHECK(same_bits(next.used(), expected.used()));
          for (std::size_t i = 0; i < kCount; ++i) next.floats[i] = value_of(next.values()[i]);
          std::swap(chunk, next);
        }
      }
}

TEST_CASE("rounding: assigned values are kept exactly, and the state follows as in float32") {
  for (const UpdateRule rule : versioned_rules())
    for (const float ema : {0.0F, 0.5F})
      for (const Change how : {Change::kAssign, Change::kReset}) {
        CAPTURE(to_string(rule));
        CAPTURE(ema);
        CAPTURE(std::uint64_t(how));
        const Settings settings = settings_for(rule, ema);
        Chunk chunk = first_chunk(settings), next = chunk;
        for (std::size_t k = 0; k < chunk.slots; ++k)
          for (std::size_t i = 0; i < kCount; ++i)
            chunk.slot(k)[i] = chunk.floats[(k + 1) * kStride + i] = float(i % 5 + k) / 4;
        std::vector<float> stored((kCount + 1) / 2), floats(kCount);
        for (std::size_t i = 0; i < kCount; ++i) {
          reinterpret_cast<BFloat16Bits*>(stored.data())[i] = bits_of(float(i % 11) / 3);
          floats[i] = value_of(bits_of(float(i % 11) / 3));
        }
        change(settings, how, kRate, next.stored.data(), chunk.stored.data(), kStride, stored.data(), kCount);
        change(in_float32(settings), how, kRate, next.floats.data(), chunk.floats.data(), kStride, floats.data(),
               kCount);
        Chunk expected = next;
        expected.store(0, 0);  // its values are those of bfloat16: nothing is rounded
        CHECK(same_bits(next.used(), expected.used()));
        change(settings, how, kRate, chunk.stored.data(), chunk.stored.data(), kStride, stored.data(), kCount);
        CHECK(same_bits(chunk.used(), next.used()));
      }
}

TEST_CASE("rounding: values are widened in place, whatever their number") {
  for (const std::size_t count : {1, 2, 3, 1023, 1024, 1025, 3001}) {
    CAPTURE(count);
    std::vector<float> values(count);
    auto* const stored = reinterpret_cast<BFloat16Bits*>(values.data() + (count - (count + 1) / 2));
    for (std::size_t i = 0; i < count; ++i) stored[i] = static_cast<std::uint16_t>(0x3f80 + i % 100);
    widen_in_place(values.data(), count);
    bool is_right = true;
    for (std::size_t i = 0; i < count; ++i)
      is_right = is_right && values[i] == value_of(static_cast<std::uint16_t>(0x3f80 + i % 100));
    CHECK(is_right);
  }
}
