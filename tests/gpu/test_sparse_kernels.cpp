// The kernel of sparse models, against the losses and gradients of the CPU's models, for the same rows. Both sum in
// float32, each in its own order.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gpu/tables.hpp"
#include "train/models/sparse/sparse_model.hpp"

namespace {

using namespace ps_shm;
using namespace ps_shm::test;

constexpr float kGuard = -77.0F, kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kRounding = 3e-5;  // relative to the largest of an example

struct Kind {
  const char* model;
  train::SparseKind data;
  train::SparseModelOptions options;
};
const std::vector<Kind> kKinds{{"logistic", train::SparseKind::kFeatures, {}},
                               {"logistic", train::SparseKind::kFeatures, {.bias = true}},
                               {"svm", train::SparseKind::kFeatures, {}},
                               {"fm", train::SparseKind::kFeatures, {.factors = 8}},
                               {"fm", train::SparseKind::kFeatures, {.factors = 0}},
                               {"fm", train::SparseKind::kRatings, {.factors = 33}},
                               {"mf", train::SparseKind::kRatings, {.factors = 0}},
                               {"mf", train::SparseKind::kRatings, {.factors = 8}},
                               {"mf", train::SparseKind::kRatings, {.factors = 63}}};

std::unique_ptr<train::SparseModel> make(const Kind& kind) {
  train::SparseInfo info;
  info.kind = kind.data;
  info.examples = 10, info.nonzeros = 50, info.features = 1000, info.users = 500, info.items = 500;
  info.label_min = 1, info.label_max = 5, info.label_sum = 31, info.distinct_labels = 2;
  return train::make_sparse_model(kind.model, info, kind.options);
}

// An example touches 0 to 70 rows, and of ratings two; every third one has the same row twice.
struct Batch {
  std::vector<std::uint64_t> begins{0};
  std::vector<float> x, scales, labels, targets, rows;

  Batch(const Kind& kind, train::SparseModel& model, std::size_t examples, std::size_t longest) {
    const bool is_rating = kind.data == train::SparseKind::kRatings;
    const std::size_t width = model.table().shape[1];
    const std::vector<float> drawn = random_floats(examples * (longest + 3), 3);
    for (std::size_t e = 0; e < examples; ++e) {
      const std::size_t count = is_rating ? 2 : (e * 37 + 70) % (longest + 1);
      const std::vector<float> values = random_floats(count * width, 5 + e);
      for (std::size_t i = 0; i < count; ++i) {
        x.push_back(is_rating ? 1.0F : drawn[x.size() % drawn.size()]);
        scales.push_back(float(i % 4));
      }
      if (kind.options.bias) x.push_back(1.0F), scales.push_back(0.0F);
      for (std::size_t i = 0; i < count * width; ++i)
        rows.push_back(0.3F * values[e % 3 == 0 && i >= width ? i - width : i]);
      if (kind.options.bias) rows.push_back(0.25F);
      begins.push_back(x.size());
      labels.push_back(is_rating ? 3.0F + 2.0F * drawn[e] : (e % 2 == 0 ? 1.0F : 5.0F));
      targets.push_back(model.target(labels.back()));
    }
  }
};

struct L2 {
  float first = 0.0F, factors = 0.0F;
};

struct Outcome {
  std::vector<float> losses, gradients;
};

Outcome on_device(Bench& bench, const Batch& batch, const kernels::SparseForm& form, const L2& l2) {
  const auto begins = bench.put(batch.begins);
  const auto x = bench.put(batch.x), scales = bench.put(batch.scales), targets = bench.put(batch.targets),
             rows = bench.put(batch.rows);
  const auto gradients = bench.put(std::vector<float>(batch.rows.size() + 8, kGuard)),
             losses = bench.put(std::vector<float>(batch.targets.size() + 8, kGuard));
  const kernels::SparseBatch there{.begins = begins.on_device(),
                                   .values = x.on_device(),
                                   .scales = l2.first == 0 && l2.factors == 0 ? nullptr : scales.on_device(),
                                   .targets = targets.on_device(),
                                   .examples = batch.targets.size(),
                                   .l2_first = l2.first,
                                   .l2_factors = l2.factors};
  bench.run(model_kernels().sparse_gradient(form, there, rows.on_device(), gradients.on_device(), losses.on_device(),
                                            bench.stream()));
  Outcome found{bench.get(losses), bench.get(gradients)};
  for (std::vector<float>* const values : {&found.losses, &found.gradients}) {
    CHECK(std::count(values->end() - 8, values->end(), kGuard) == 8);
    values->resize(values->size() - 8);
  }
  return found;
}

Outcome on_processor(const Batch& batch, train::SparseModel& model, const L2& l2, bool has_bias) {
  const std::size_t width = model.table().shape[1];
  Outcome expected{{}, std::vector<float>(batch.rows.size())};
  for (std::size_t e = 0; e < batch.targets.size(); ++e) {
    const std::size_t begin = batch.begins[e], count = batch.begins[e + 1] - begin;
    const std::vector<std::uint32_t> ids(count - (has_bias ? 1 : 0));
    expected.losses.push_back(
        model.gradient({.label = batch.labels[e], .ids = ids, .values = {&batch.x[begin], ids.size()}},
                       batch.rows.data() + begin * width, expected.gradients.data() + begin * width));
  }
  for (std::size_t i = 0; i < batch.rows.size(); ++i)
    expected.gradients[i] += batch.scales[i / width] * (i % width == 0 ? l2.first : l2.factors) * batch.rows[i];
  return expected;
}

// How many differ by more than rounding; NaN does.
std::size_t count_wrong(const float* found, const float* expected, std::size_t count) {
  double largest = 1.0;
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(double(expected[i])));
  for (std::size_t i = 0; i < count; ++i)
    wrong += std::abs(double(found[i]) - double(expected[i])) <= kRounding * largest ? 0 : 1;
  return wrong;
}

TEST_CASE("sparse: losses and gradients equal the CPU's, of every model, of empty and of long examples") {
  Bench bench;
  for (const Kind& kind : kKinds)
    for (const std::size_t examples : {1, 7, 8, 9, 101})
      for (const L2& l2 : {L2{0.0F, 0.0F}, L2{0.5F, 0.0F}, L2{0.1F, 0.4F}}) {
        CAPTURE(kind.model);
        CAPTURE(kind.options.factors);
        CAPTURE(kind.options.bias);
        CAPTURE(examples);
        CAPTURE(l2.first);
        const auto model = make(kind);
        const std::size_t width = model->table().shape[1];
        for (const std::size_t longest : {0, 3, 70}) {
          const Batch batch(kind, *model, examples, longest);
          const Outcome found = on_device(bench, batch, model->form(), l2),
                        expected = on_processor(batch, *model, l2, kind.options.bias);
          CHECK(count_wrong(found.losses.data(), expected.losses.data(), examples) == 0);
          std::size_t wrong = 0;
          for (std::size_t e = 0; e < examples; ++e) {
            const std::size_t begin = batch.begins[e] * width;
            wrong += count_wrong(found.gradients.data() + begin, expected.gradients.data() + begin,
                                 batch.begins[e + 1] * width - begin);
          }
          CHECK(wrong == 0);
        }
      }
}

TEST_CASE("sparse: a rating without a user or an item has the biases that there are") {
  Bench bench;
  const auto model = make({"mf", train::SparseKind::kRatings, {.factors = 2}});
  Batch batch({"mf", train::SparseKind::kRatings, {.factors = 2}}, *model, 2, 0);
  batch.begins = {0, 1, 1}, batch.rows.resize(3);
  const Outcome found = on_device(bench, batch, model->form(), {});
  for (const std::size_t e : {0, 1}) {
    const std::vector<float> x(1 - e, 1.0F);
    const std::vector<std::uint32_t> ids(x.size());
    const float score = model->score({.label = 0.0F, .ids = ids, .values = x}, batch.rows.data());
    CHECK(found.losses[e] == doctest::Approx(model->loss(batch.labels[e], score)));
  }
  CHECK(found.gradients[0] != 0.0F);
  CHECK(found.gradients[1] == 0.0F);
  CHECK(found.gradients[2] == 0.0F);
}

TEST_CASE("sparse: NaN in a row shows in the loss of its example only") {
  Bench bench;
  for (const Kind& kind : kKinds) {
    CAPTURE(kind.model);
    const auto model = make(kind);
    Batch batch(kind, *model, 9, 40);
    const std::size_t width = model->table().shape[1];
    batch.rows[batch.begins[4] * width] = kNan;
    const Outcome found = on_device(bench, batch, model->form(), {});
    for (std::size_t e = 0; e < 9; ++e) CHECK(std::isnan(found.losses[e]) == (e == 4));
  }
}

}  // namespace
