// Models of sparse examples: a table of rows in shared memory, of which each example touches a few.
//
// A model holds no parameters, only its own workspace: one object serves one thread at a time. Row i of the arguments is
// the table's row of the example's touched id i (touched()). Invariants:
//  1. A gradient is of one example's loss, without regularisation: that belongs to the trainer.
//  2. The same rows and example give the same bits.
//
//   name      row                 score of example x                                  loss, with y the label
//   logistic  {w}                 s = sum w_i x_i                                     log(1 + exp(-y s)), y in -1, 1
//   svm       {w}                 the same                                            max(0, 1 - y s)
//   mf        {b, p_1 .. p_k}     s = mean + b_user + b_item + p_user . p_item        (s - y)^2 / 2
//   fm        {w, v_1 .. v_k}     s = mean + sum w_i x_i + sum_(i<j) (v_i . v_j) x_i x_j   of ratings as mf's, else logistic's
//
// Sources: mf: Koren, Bell, Volinsky, Matrix factorization techniques for recommender systems, 2009; fm: Rendle,
// Factorization machines, 2010 (with its O(k n) form of the sum).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/sparse_batch.hpp"
#include "train/data/sparse/sparse_data.hpp"
#include "train/models/dense/model.hpp"

namespace ps_shm::train {

// The key of the bias row of a model of keyed data. It is like any other: features may have any key, but it is not to be
// expected that one has this.
inline constexpr std::uint64_t kBiasKey = 0xb1a5'5e1f'0c2d'9a47;

struct SparseModelOptions {
  std::uint32_t factors = 8;  // k, of mf and fm
  bool bias = false;          // logistic, svm: an additional row that every example touches, with value 1
};

// Metrics over a set of examples. Those that do not apply are empty.
struct SparseMetrics {
  double loss = 0.0;               // mean
  std::optional<double> accuracy;  // for classifiers
  std::optional<double> auc;       // area under the ROC curve, ties counted half (Fawcett 2006)
  std::optional<double> log_loss;  // for models that give probabilities
  std::optional<double> rmse;      // for ratings
};

class SparseModel {
 public:
  virtual ~SparseModel() = default;

  // The model's table: a name and the shape {rows, width}. Of keyed data the number of rows means nothing.
  virtual const ParameterSpec& table() const = 0;

  // Fills `out` with the initial values of the rows from `first_row` on, which depend on the seed and the row only.
  virtual void initialize(std::uint64_t seed, std::uint64_t first_row, std::span<float> out) const = 0;

  // The rows that an example touches: its ids, and the bias row if there is one. Valid until the next call.
  virtual std::span<const std::uint32_t> touched(const SparseExample& example) = 0;

  // The same of an example of keyed data: its keys, and that of the bias.
  virtual std::span<const std::uint64_t> touched_keys(const SparseExample& example) { return example.keys; }

  // The rows of a table by key begin with values uniform in plus or minus this.
  virtual float initial_range() const { return 0.0F; }

  // Writes the gradient with respect to each touched row, as many as there are rows; returns the loss.
  virtual float gradient(const SparseExample& example, const float* rows, float* gradients) = 0;

  // The score s.
  virtual float score(const SparseExample& example, const float* rows) = 0;

  // The formulas above as a GPU's kernel takes them, and a label as the loss takes it: a rating, or the sign of a class.
  virtual kernels::SparseForm form() const = 0;
  virtual float target(float label) const = 0;

  // The loss at a score, and the applicable kinds of metrics.
  float loss(float label, float score) const { return kernels::loss_at(form().loss, target(label), score).loss; }
  virtual bool is_classifier() const = 0;
  virtual bool gives_probabilities() const = 0;
  virtual bool is_positive(float label) const = 0;  // for classifiers: which of the two classes
};

// Makes the sparse model of that name (train/models/models.hpp). Throws Error for an unknown name, or unsuitable data
// (mf requires ratings; of features, logistic, svm and fm: two different labels).
std::unique_ptr<SparseModel> make_sparse_model(std::string_view name, const SparseInfo& info,
                                               const SparseModelOptions& options);

}  // namespace ps_shm::train
