#include "train/models/models.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "ps_shm/errors.hpp"
#include "train/models/dense/classifier.hpp"
#include "train/models/sparse/sparse_models.hpp"

namespace ps_shm::train {
namespace {

constexpr const char* kDigits = "digits";
constexpr const char* kMadeUpFeatures = "zipf:1000x5000x10";
constexpr const char* kMadeUpRatings = "ratings:300x200x20000";

constexpr ModelRow kModels[] = {
    {.name = "count", .kind = ModelKind::kCount, .default_data = ""},
    {.name = "softmax", .kind = ModelKind::kDense, .default_data = kDigits, .make_dense = make_softmax_regression},
    {.name = "mlp", .kind = ModelKind::kDense, .default_data = kDigits, .make_dense = make_mlp},
    {.name = "logistic",
     .kind = ModelKind::kSparse,
     .default_data = kMadeUpFeatures,
     .make_sparse = make_logistic,
     .default_rule = UpdateRule::kAdagrad,
     .default_lr = 0.1F,
     .takes_features = true},
    {.name = "svm",
     .kind = ModelKind::kSparse,
     .default_data = kMadeUpFeatures,
     .make_sparse = make_svm,
     .default_rule = UpdateRule::kAdagrad,
     .default_lr = 0.1F,
     .takes_features = true},
    {.name = "mf",
     .kind = ModelKind::kSparse,
     .default_data = kMadeUpRatings,
     .make_sparse = make_matrix_factorisation,
     .default_rule = UpdateRule::kAdagrad,
     .default_lr = 0.05F,
     .takes_ratings = true,
     .has_factors = true},
    {.name = "fm",
     .kind = ModelKind::kSparse,
     .default_data = kMadeUpRatings,
     .make_sparse = make_factorisation_machine,
     .default_rule = UpdateRule::kAdagrad,
     .default_lr = 0.05F,
     .takes_features = true,
     .takes_ratings = true,
     .has_factors = true},
};

}  // namespace

std::span<const ModelRow> models() noexcept { return kModels; }

const ModelRow& model_row(std::string_view name) {
  const auto found =
      std::find_if(std::begin(kModels), std::end(kModels), [&](const ModelRow& row) { return row.name == name; });
  if (found == std::end(kModels))
    throw Error(
        fmt::format("model '{}': no such model; expected {}", name, model_names([](const ModelRow&) { return true; })));
  return *found;
}

std::string model_names(const std::function<bool(const ModelRow&)>& is_wanted, const char* last) {
  std::vector<const char*> names;
  for (const ModelRow& row : kModels)
    if (is_wanted(row)) names.push_back(row.name);
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 < names.size() ? ", " : fmt::format(" {} ", last)) + names[i];
  return text;
}

std::string model_names(ModelKind kind, const char* last) {
  return model_names([=](const ModelRow& row) { return row.kind == kind; }, last);
}

}  // namespace ps_shm::train
