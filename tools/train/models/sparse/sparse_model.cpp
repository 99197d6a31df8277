#include "train/models/sparse/sparse_model.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "ps_shm/errors.hpp"
#include "train/data/random.hpp"
#include "train/models/models.hpp"
#include "train/models/sparse/sparse_models.hpp"

namespace ps_shm::train {
namespace {

constexpr double kFactorDeviation = 0.01;  // see kFactorRange

}  // namespace

float mean_label(const SparseInfo& info) {
  return info.examples == 0 ? 0.0F : static_cast<float>(info.label_sum / double(info.examples));
}

void fill_factor_rows(std::uint64_t seed, std::uint64_t first_row, std::size_t width, std::span<float> out) {
  const std::uint64_t purpose = mix(seed, hash_name("factors"));
  const double scale = kFactorDeviation * std::sqrt(12.0) * 0x1.0p-53;  // of 53 random bits
  std::uint64_t element = first_row * width;
  for (std::size_t i = 0; i < out.size(); ++i, ++element) {
    const auto bits = static_cast<std::int64_t>(mix(purpose, element) >> 11) - (std::int64_t{1} << 52);
    out[i] = element % width == 0 ? 0.0F : static_cast<float>(scale * double(bits));
  }
}

std::unique_ptr<SparseModel> make_sparse_model(std::string_view name, const SparseInfo& info,
                                               const SparseModelOptions& options) {
  const ModelRow& row = model_row(name);
  if (row.make_sparse == nullptr)
    throw Error(
        fmt::format("model '{}' does not take sparse examples; expected {}", name, model_names(ModelKind::kSparse)));
  const bool is_rating = info.kind == SparseKind::kRatings;
  if (is_rating && !row.takes_ratings)
    throw Error(fmt::format("model {} does not take ratings; choose `model` {}", name,
                            model_names([](const ModelRow& other) { return other.takes_ratings; })));
  if (!is_rating && !row.takes_features)
    throw Error(fmt::format("model {} takes ratings, but the data has features; choose `model` {}", name,
                            model_names([](const ModelRow& other) { return other.takes_features; })));
  if (!is_rating && info.distinct_labels > 2)
    throw Error(
        fmt::format("model {} is a two-class model, but the data has more labels, from {} to {}; map them to two", name,
                    info.label_min, info.label_max));
  if (!is_rating && info.distinct_labels < 2)
    throw Error(
        fmt::format("model {} is a two-class model, but all examples of the data have the label {}; add examples "
                    "of the other class",
                    name, info.label_min));
  if ((info.has_keys != 0 ? info.nonzeros : info.features) == 0 && !options.bias)
    throw Error("the data has no features: there is nothing to train");
  if (info.features > std::numeric_limits<std::uint32_t>::max())
    throw Error(fmt::format("the data has {} features, which exceeds 32-bit ids; use `hash-bits` 31", info.features));
  return row.make_sparse(info, options);
}

}  // namespace ps_shm::train
