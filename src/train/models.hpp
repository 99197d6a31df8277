// The models that a worker can train, a row each. From the rows come what --model takes and says, which settings suit a
// model, and what it has where nothing else is asked for. A new model is a source of its own, its factory's declaration,
// and a row.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ps/optimizer.hpp"

namespace ps::train {

class Model;
class SparseModel;
struct SparseInfo;
struct SparseModelOptions;

enum class ModelKind {
  kCount,   // adds ones to a variable, and learns nothing
  kDense,   // of images (dense/model.hpp)
  kSparse,  // of examples that touch a few rows each (sparse/sparse_model.hpp)
};

struct ModelRow {
  const char* name;
  ModelKind kind;
  const char* usual_data;  // where none is given; empty: it has none

  // kDense.
  std::unique_ptr<Model> (*make_dense)(std::size_t features, std::size_t classes) = nullptr;

  // kSparse. What it learns well with on data of many kinds is measured: see the README's section on sparse models.
  std::unique_ptr<SparseModel> (*make_sparse)(const SparseInfo& info, const SparseModelOptions& options) = nullptr;
  UpdateRule usual_rule = UpdateRule::kSgd;
  float usual_learning_rate = 0.0F;
  bool takes_features = false, takes_ratings = false;
  bool has_factors = false;  // else it can have a bias
};

std::span<const ModelRow> models() noexcept;

// Throws Error for a name that is not there.
const ModelRow& model_row(std::string_view name);

// The names of those that `is_wanted`, for people: "softmax or mlp".
std::string model_names(const std::function<bool(const ModelRow&)>& is_wanted, const char* last = "or");
std::string model_names(ModelKind kind, const char* last = "or");

}  // namespace ps::train
