#include "train/data/synthetic.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "ps_shm/errors.hpp"
#include "train/data/random.hpp"

namespace ps_shm::train {
namespace {

constexpr std::string_view kPrefix = "synthetic:";
constexpr std::size_t kFactors = 16;
constexpr std::size_t kMaxValues = std::size_t{1} << 29;  // 2 GiB of floats in each process
constexpr std::size_t kDefaultExamples = 1000, kMaxExamples = kMaxValues;
constexpr float kSpread = 0.3F;  // of a feature by the factors, around 0.5: one value in thirty is clipped at 0 or 1
constexpr float kNoise = 0.05F;
constexpr float kMargin = 1.5F;  // between the best class and the next, whose scores deviate by about 3
constexpr int kMaxDraws = 100;   // to obtain the margin: with very many classes it is rare

struct Sizes {
  std::size_t features = 0, classes = 0, examples = kDefaultExamples;
};

[[noreturn]] void refuse(const std::string& source, const std::string& why) {
  throw Error(
      fmt::format("data source '{}': {}; write synthetic:FEATURESxCLASSES or synthetic:FEATURESxCLASSESx"
                  "EXAMPLES, as in synthetic:10000x10",
                  source, why));
}

Sizes read_sizes(const std::string& source) {
  std::array<std::size_t, 3> numbers = {0, 0, kDefaultExamples};
  const char* next = source.data() + kPrefix.size();
  const char* const end = source.data() + source.size();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto [after, error] = std::from_chars(next, end, numbers[i]);
    if (error != std::errc{}) refuse(source, "not a size");
    next = after;
    if (next == end && i >= 1) break;
    if (next == end || *next != 'x' || i + 1 == numbers.size()) refuse(source, "not a size");
    ++next;
  }
  const Sizes sizes = {numbers[0], numbers[1], numbers[2]};
  if (sizes.features < 1 || sizes.features > kMaxFeatures)
    refuse(source, fmt::format("features must be 1 to {}", kMaxFeatures));
  if (sizes.classes < 2 || sizes.classes > kMaxClasses)
    refuse(source, fmt::format("classes must be 2 to {}", kMaxClasses));
  if (sizes.examples < sizes.classes || sizes.examples > kMaxExamples)
    refuse(source, fmt::format("examples must be {} to {}", sizes.classes, kMaxExamples));
  if (sizes.features * (sizes.examples + sizes.examples / 4 + 1) > kMaxValues)
    refuse(source, fmt::format("{} examples of {} features are more than 2 GiB", sizes.examples, sizes.features));
  return sizes;
}

// Normally distributed, for the factors; and a cheaper, uniform noise for the many features.
float draw_normal(std::mt19937_64& generator) { return static_cast<float>(draw_truncated_normal(generator)); }

class UniformNoise {
 public:
  explicit UniformNoise(std::uint64_t seed) : state_(seed) {}
  float draw() {                                                    // -1 to 1
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX; its high bits are good enough
    return static_cast<float>(static_cast<std::int32_t>(state_ >> 32)) * 0x1.0p-31F;
  }

 private:
  std::uint64_t state_;
};

// Shared by all examples.
struct Teacher {
  std::vector<float> mixing;   // factors x features
  std::vector<float> classes;  // classes x factors
};

template <class Draw>
std::vector<float> weights(std::size_t count, Loading& loading, Draw&& draw_one) {
  constexpr std::size_t kBetweenLooks = std::size_t{1} << 16;
  std::vector<float> values;
  values.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (i % kBetweenLooks == 0) loading.at(0, 1);
    values.push_back(draw_one());
  }
  return values;
}

// `before`: how many of all `all` examples have been drawn before.
Dataset draw(const Teacher& teacher, const Sizes& sizes, std::size_t count, std::uint64_t seed, Loading& loading,
             std::size_t before, std::size_t all) {
  Dataset data;
  data.count = count;
  data.features = sizes.features;
  data.classes = sizes.classes;
  data.images.reserve(count * sizes.features);
  data.labels.resize(count);
  // An example's norm is about 2 whatever the number of features, so that the default learning rates are suitable.
  const float scale = std::min(1.0F, 4.0F / std::sqrt(static_cast<float>(sizes.features)));
  std::mt19937_64 generator(seed);
  UniformNoise noise(mix(seed));
  std::array<float, kFactors> factors{};
  for (std::size_t i = 0; i < count; ++i) {
    for (int draws = 0; draws < kMaxDraws; ++draws) {
      std::generate(factors.begin(), factors.end(), [&] { return draw_normal(generator); });
      float best = -std::numeric_limits<float>::infinity(), next = best;
      for (std::size_t c = 0; c < sizes.classes; ++c) {
        const float* const weights = &teacher.classes[c * kFactors];
        const float score = std::inner_product(factors.begin(), factors.end(), weights, 0.0F);
        next = std::max(next, std::min(best, score));
        if (score <= best) continue;
        best = score;
        data.labels[i] = static_cast<std::uint8_t>(c);
      }
      if (best - next >= kMargin) break;
    }
    data.images.resize((i + 1) * sizes.features, 0.5F);
    float* const image = &data.images[i * sizes.features];
    for (std::size_t f = 0; f < kFactors; ++f) {
      loading.at(before + i, all);
      const float* const row = &teacher.mixing[f * sizes.features];
      for (std::size_t j = 0; j < sizes.features; ++j) image[j] += factors[f] * row[j];
    }
    for (std::size_t j = 0; j < sizes.features; ++j)
      image[j] = scale * std::clamp(image[j] + kNoise * noise.draw(), 0.0F, 1.0F);
  }
  return data;
}

}  // namespace

bool is_synthetic(std::string_view source) { return source.starts_with(kPrefix); }

DataSplit make_synthetic(const std::string& source, const LoadHooks& hooks) {
  const Sizes sizes = read_sizes(source);
  const std::uint64_t seed = hash_name(source);
  std::mt19937_64 generator(seed);
  Teacher teacher;
  Loading loading(hooks, source);
  const float deviation = kSpread / std::sqrt(static_cast<float>(kFactors));
  teacher.mixing = weights(kFactors * sizes.features, loading, [&] { return deviation * draw_normal(generator); });
  teacher.classes = weights(sizes.classes * kFactors, loading, [&] { return draw_normal(generator); });
  const std::size_t tests = std::max<std::size_t>(1, sizes.examples / 4), all = sizes.examples + tests;
  Dataset train = draw(teacher, sizes, sizes.examples, mix(seed, 1), loading, 0, all);
  return {source, std::move(train), draw(teacher, sizes, tests, mix(seed, 2), loading, sizes.examples, all)};
}

}  // namespace ps_shm::train
