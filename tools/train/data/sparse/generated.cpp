#include "train/data/sparse/generated.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "ps_shm/errors.hpp"
#include "train/data/random.hpp"
#include "train/data/sparse/numbers.hpp"
#include "train/data/sparse/zipf.hpp"

namespace ps_shm::train {
namespace {

constexpr std::string_view kZipf = "zipf:", kRatings = "ratings:";
constexpr std::uint64_t kSeed = 0x6d616465'75700001;
constexpr std::uint64_t kMaxGenerated = std::uint64_t{1} << 40;
constexpr double kMaxExponent = 4.0;
constexpr double kItemExponent = 0.8;
constexpr double kSharpness = 4.0;  // of the planted model: the best possible accuracy is about 86 %
constexpr int kPlantedFactors = 4;
constexpr int kMaxRounds = 64;               // number of draws for a row
constexpr std::uint64_t kBetweenLooks = 64;  // ratings, each of which takes some hundred nanoseconds

[[noreturn]] void fail(const std::string& source, const char* what) {
  throw Error(fmt::format("{}: {}; expected zipf:FEATURESxEXAMPLES[xPER_ROW[xEXPONENT]] or ratings:USERSxITEMSxRATINGS",
                          source, what));
}

std::uint64_t whole_number(const std::string& source, std::string_view text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || value == 0) fail(source, "sizes must be integers of at least 1");
  return value;
}

std::vector<std::string_view> split_at_x(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t x = text.find('x');
    parts.push_back(text.substr(0, x));
    if (x == text.npos) return parts;
    text.remove_prefix(x + 1);
  }
}

// In [-1, 1), determined by its arguments.
double planted(std::uint64_t purpose, std::uint64_t number) {
  return static_cast<double>(mix(mix(kSeed, purpose), number) >> 11) * 0x1.0p-52 - 1.0;
}

double draw_unit(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1.0p-53; }

// Distinct ids, ascending.
template <class Id>
void draw_row(const ZipfSampler& zipf, std::mt19937_64& random, std::size_t per_row, std::vector<Id>& ids) {
  ids.clear();
  for (int round = 0; round < kMaxRounds && ids.size() < per_row; ++round) {
    while (ids.size() < per_row) ids.push_back(static_cast<Id>(zipf(random) - 1));
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  }
  if (ids.size() == per_row) return;
  // A steep distribution repeats the same few: the most probable missing ids complete the row.
  const std::vector<Id> drawn = ids;
  for (Id id = 0; ids.size() < per_row; ++id)
    if (!std::binary_search(drawn.begin(), drawn.end(), id)) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
}

template <class Id>
void generate_zipf(const std::string& source, Loading& loading, SparseWriter& out) {
  constexpr bool kHasKeys = sizeof(Id) > sizeof(std::uint32_t);
  const auto parts = split_at_x(std::string_view(source).substr(kZipf.size()));
  if (parts.size() < 2 || parts.size() > 4) fail(source, "two to four sizes are required");
  const std::uint64_t features = whole_number(source, parts[0]), examples = whole_number(source, parts[1]);
  const std::uint64_t per_row =
      parts.size() > 2 ? whole_number(source, parts[2]) : std::min<std::uint64_t>(50, features);
  float exponent = 0.8F;
  if (parts.size() > 3 &&
      (parse_float(parts[3], exponent) != NumberFault::kNone || exponent < 0 || exponent > kMaxExponent))
    fail(source, "the exponent must be a number from 0 to 4");
  if (features > kMaxIds && !kHasKeys) fail(source, "there can be at most 2^32 features, unless they have keys");
  if (features > kMaxGenerated) fail(source, "there can be at most 2^40 features");
  if (examples > kMaxGenerated) fail(source, "there can be at most 2^40 examples");
  if (per_row > features || per_row > (std::uint64_t{1} << 20))
    fail(source, "a row can have at most 2^20 features, and no more than FEATURES");

  const ZipfSampler zipf(features, exponent);
  std::mt19937_64 random(kSeed);
  std::vector<Id> ids;
  const auto value = static_cast<float>(1.0 / std::sqrt(static_cast<double>(per_row)));
  const std::vector<float> values(per_row, value);
  const std::uint64_t weights = hash_name("weight");
  for (std::uint64_t example = 0; example < examples; ++example) {
    loading.at(example, examples);
    draw_row(zipf, random, per_row, ids);
    double score = 0.0;
    for (const Id id : ids) score += planted(weights, id);
    score *= std::sqrt(3.0) * static_cast<double>(value);  // a uniform number in [-1, 1) has the variance 1/3
    const bool is_positive = draw_unit(random) * (1.0 + std::exp(-kSharpness * score)) < 1.0;
    out.add(is_positive ? 1.0F : -1.0F, std::span<const Id>(ids), values);
  }
  if (!kHasKeys) out.info().features = features;
}

template <class Id>
void generate_ratings(const std::string& source, Loading& loading, SparseWriter& out) {
  const auto parts = split_at_x(std::string_view(source).substr(kRatings.size()));
  if (parts.size() != 3) fail(source, "three sizes are required");
  const std::uint64_t users = whole_number(source, parts[0]), items = whole_number(source, parts[1]);
  const std::uint64_t ratings = whole_number(source, parts[2]);
  if (users > kMaxIds / 2 || items > kMaxIds / 2) fail(source, "there can be at most 2^31 users and 2^31 items");
  if (ratings > kMaxGenerated) fail(source, "there can be at most 2^40 ratings");

  const ZipfSampler zipf(items, kItemExponent);
  std::mt19937_64 random(kSeed);
  const std::uint64_t user_bias = hash_name("user bias"), item_bias = hash_name("item bias");
  std::array<std::uint64_t, kPlantedFactors> user_factor, item_factor;
  for (std::size_t k = 0; k < kPlantedFactors; ++k) {
    user_factor[k] = mix(hash_name("user factor"), k);
    item_factor[k] = mix(hash_name("item factor"), k);
  }
  for (std::uint64_t rating = 0; rating < ratings; ++rating) {
    if (rating % kBetweenLooks == 0) loading.at(rating, ratings);
    const std::uint64_t user = draw_below(random, users), item = zipf(random) - 1;
    double score = 3.0 + planted(user_bias, user) + planted(item_bias, item) + (draw_unit(random) - 0.5);
    for (std::size_t k = 0; k < kPlantedFactors; ++k)
      score += planted(user_factor[k], user) * planted(item_factor[k], item);
    const Id ids[] = {static_cast<Id>(user), static_cast<Id>(users + item)};
    constexpr float kOnes[] = {1.0F, 1.0F};
    out.add(static_cast<float>(std::clamp(std::floor(score + 0.5), 1.0, 5.0)), std::span<const Id>(ids), kOnes);
  }
  SparseInfo& info = out.info();
  info.kind = SparseKind::kRatings;
  if (info.has_keys != 0) return;
  info.users = users;
  info.items = items;
  info.features = users + items;
}

}  // namespace

bool is_generated(const std::string& source) noexcept {
  return source.starts_with(kZipf) || source.starts_with(kRatings);
}

void generate(const std::string& source, const SparseSourceOptions& options, SparseWriter& out) {
  Loading loading(options, source);
  const bool is_zipf = source.starts_with(kZipf);
  if (options.keyed)
    is_zipf ? generate_zipf<std::uint64_t>(source, loading, out)
            : generate_ratings<std::uint64_t>(source, loading, out);
  else
    is_zipf ? generate_zipf<std::uint32_t>(source, loading, out)
            : generate_ratings<std::uint32_t>(source, loading, out);
}

}  // namespace ps_shm::train
