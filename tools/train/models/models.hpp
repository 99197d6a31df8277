// The models that a worker can train, one row each. The rows determine the values of --model, the settings that suit a
// model, and its defaults. A new model needs a source file, the declaration of its factory,
// and a row.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ps_shm/optimizer.hpp"

namespace ps_shm::train {

class Model;
class SparseModel;
struct SparseInfo;
struct SparseModelOptions;

enum class ModelKind {
  kCount,   // adds ones to a variable, without learning
  kDense,   // for images (dense/model.hpp)
  kSparse,  // for examples that touch a few rows each (sparse/sparse_model.hpp)
};

struct ModelRow {
  const char* name;
  ModelKind kind;
  const char* default_data;  // default data source; empty: none

  // kDense.
  std::unique_ptr<Model> (*make_dense)(std::size_t features, std::size_t classes) = nullptr;

  // kSparse. The defaults learn well on many kinds of data, as measured: see the README's section on sparse models.
  std::unique_ptr<SparseModel> (*make_sparse)(const SparseInfo& info, const SparseModelOptions& options) = nullptr;
  UpdateRule default_rule = UpdateRule::kSgd;
  float default_lr = 0.0F;
  bool takes_features = false, takes_ratings = false;
  bool has_factors = false;  // otherwise it can have a bias
};

std::span<const ModelRow> models() noexcept;

// Throws Error for an unknown name.
const ModelRow& model_row(std::string_view name);

// The names of models selected by `is_wanted`, for messages: "softmax or mlp".
std::string model_names(const std::function<bool(const ModelRow&)>& is_wanted, const char* last = "or");
std::string model_names(ModelKind kind, const char* last = "or");

}  // namespace ps_shm::train
