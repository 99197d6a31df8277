#include "train/models/dense/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "ps_shm/errors.hpp"
#include "train/data/random.hpp"
#include "train/models/dense/gemm.hpp"
#include "train/models/models.hpp"

namespace ps_shm::train {
std::size_t ParameterSpec::count() const {
  return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
}

std::vector<VariableSpec> variables_of(std::span<const ParameterSpec> parameters, DType dtype) {
  std::vector<VariableSpec> all;
  for (const ParameterSpec& one : parameters)
    all.push_back({.name = one.name, .shape = {one.shape.begin(), one.shape.end()}, .dtype = dtype});
  return all;
}

void Model::initialize(std::size_t index, std::uint64_t seed, std::span<float> out) const {
  const ParameterSpec& spec = parameters()[index];
  if (spec.shape.size() < 2) {
    std::fill(out.begin(), out.end(), 0.0F);
    return;
  }
  std::mt19937_64 generator(mix(seed, hash_name(spec.name)));
  const double deviation = 1.0 / std::sqrt(static_cast<double>(spec.shape[0]));
  for (float& value : out) value = static_cast<float>(deviation * draw_truncated_normal(generator));
}

std::unique_ptr<Model> make_model(std::string_view name, std::size_t features, std::size_t classes) {
  if (features == 0 || features > kMaxFeatures || classes == 0 || classes > kMaxClasses) {
    throw Error(fmt::format("model '{}': {} features and {} classes; expected 1 to {} and 1 to {}", name, features,
                            classes, kMaxFeatures, kMaxClasses));
  }
  const ModelRow& row = model_row(name);
  if (row.make_dense == nullptr)
    throw Error(
        fmt::format("model '{}' does not take dense examples; expected {}", name, model_names(ModelKind::kDense)));
  use_one_blas_thread();
  return row.make_dense(features, classes);
}

}  // namespace ps_shm::train
