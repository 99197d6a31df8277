#include "train/models/sparse/sparse_model.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kernels/sparse_losses.hpp"
#include "ps_shm/errors.hpp"

namespace {

using namespace ps_shm::train;
using ps_shm::kernels::hinge_loss;
using ps_shm::kernels::logistic_loss;

SparseInfo features_info(std::uint64_t features, float label_min = -1, float label_max = 1) {
  SparseInfo info;
  info.examples = 10;
  info.features = features;
  info.label_min = label_min;
  info.label_max = label_max;
  info.distinct_labels = label_min == label_max ? 1 : 2;
  return info;
}

SparseInfo ratings_info() {
  SparseInfo info;
  info.kind = SparseKind::kRatings;
  info.examples = 4;
  info.users = 3;
  info.items = 2;
  info.features = 5;
  info.label_sum = 14;
  info.label_min = 1;
  info.label_max = 5;
  info.distinct_labels = 3;
  return info;
}

// An example made by a test.
struct Example {
  float label;
  std::vector<std::uint32_t> ids;
  std::vector<float> values;
  operator SparseExample() const { return {label, ids, values}; }
};

// Scores and losses by their definition, in double precision.
using Rows = std::vector<std::vector<double>>;

double linear_score(const Example& x, const Rows& rows) {
  double sum = rows.size() > x.ids.size() ? rows.back()[0] : 0;
  for (std::size_t i = 0; i < x.ids.size(); ++i) sum += rows[i][0] * double(x.values[i]);
  return sum;
}

double machine_score(const Example& x, const Rows& rows, double mean) {
  double sum = mean + linear_score(x, rows);
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t j = i + 1; j < rows.size(); ++j)
      for (std::size_t k = 1; k < rows[i].size(); ++k)
        sum += rows[i][k] * rows[j][k] * double(x.values[i]) * double(x.values[j]);
  return sum;
}

double factors_score(const Rows& rows, double mean) {
  double sum = mean + rows[0][0] + rows[1][0];
  for (std::size_t k = 1; k < rows[0].size(); ++k) sum += rows[0][k] * rows[1][k];
  return sum;
}

template <class Loss>
void check_gradient(SparseModel& model, const Example& x, std::size_t touched, const Loss& reference_loss) {
  const std::size_t width = model.table().shape[1];
  REQUIRE(model.touched(x).size() == touched);
  std::mt19937_64 random(3);
  std::vector<float> rows, gradients(touched * width, std::numeric_limits<float>::quiet_NaN());
  for (std::size_t i = 0; i < touched * width; ++i) rows.push_back(float(random() % 2001) / 2000 - 0.5F);
  Rows exact(touched);
  for (std::size_t i = 0; i < rows.size(); ++i) exact[i / width].push_back(double(rows[i]));

  const float loss = model.gradient(x, rows.data(), gradients.data());

  CHECK(double(loss) == doctest::Approx(reference_loss(exact)).epsilon(1e-5));
  CHECK(model.loss(x.label, model.score(x, rows.data())) == loss);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    constexpr double kStep = 1e-6;
    double& element = exact[i / width][i % width];
    element += kStep;
    const double above = reference_loss(exact);
    element -= 2 * kStep;
    const double below = reference_loss(exact);
    element += kStep;
    CAPTURE(i);
    CHECK(double(gradients[i]) == doctest::Approx((above - below) / (2 * kStep)).epsilon(1e-4));
  }
}

double log_loss(double sign, double score) { return std::log(1 + std::exp(-sign * score)); }
double hinge(double sign, double score) { return std::max(0.0, 1 - sign * score); }

const Example kExample{1, {1, 4, 6}, {0.5F, -2, 1}};

}  // namespace

TEST_CASE("gradients of the linear models are the slopes of their losses, with and without a bias") {
  for (const float label : {-1.0F, 1.0F})
    for (const bool bias : {false, true}) {
      CAPTURE(label);
      CAPTURE(bias);
      Example x = kExample;
      x.label = label;
      SparseModelOptions options;
      options.bias = bias;
      const std::size_t touched = bias ? 4 : 3;
      const auto logistic = make_sparse_model("logistic", features_info(7), options);
      check_gradient(*logistic, x, touched,
                     [&](const Rows& rows) { return log_loss(double(label), linear_score(x, rows)); });
      const auto svm = make_sparse_model("svm", features_info(7), options);
      check_gradient(*svm, x, touched, [&](const Rows& rows) { return hinge(double(label), linear_score(x, rows)); });
    }
}

TEST_CASE("gradients of the factorisation machine are the slopes of its loss over all pairs of features") {
  for (const float label : {-1.0F, 1.0F})
    for (const std::uint32_t factors : {0U, 1U, 5U}) {
      CAPTURE(factors);
      Example x = kExample;
      x.label = label;
      const auto model = make_sparse_model("fm", features_info(7), {.factors = factors});
      check_gradient(*model, x, 3,
                     [&](const Rows& rows) { return log_loss(double(label), machine_score(x, rows, 0)); });
    }
}

TEST_CASE("gradients of matrix factorisation are the slopes of half of the squared error") {
  const Example x{4, {2, 3}, {1, 1}};
  for (const std::uint32_t factors : {0U, 1U, 8U}) {
    CAPTURE(factors);
    const auto model = make_sparse_model("mf", ratings_info(), {.factors = factors});
    check_gradient(*model, x, 2, [&](const Rows& rows) { return std::pow(factors_score(rows, 3.5) - 4, 2) / 2; });
  }
}

TEST_CASE("on ratings a factorisation machine is matrix factorisation, with bitwise equal initial tables") {
  const auto mf = make_sparse_model("mf", ratings_info(), {});
  const auto fm = make_sparse_model("fm", ratings_info(), {});
  const Example x{2, {0, 4}, {1, 1}};
  std::vector<float> of_mf(5 * 9), of_fm(5 * 9);
  mf->initialize(7, 0, of_mf);
  fm->initialize(7, 0, of_fm);
  CHECK(of_mf == of_fm);
  std::vector<float> rows(of_mf.begin(), of_mf.begin() + 9);
  rows.insert(rows.end(), of_mf.begin() + 4 * 9, of_mf.end());
  CHECK(mf->score(x, rows.data()) == doctest::Approx(fm->score(x, rows.data())).epsilon(1e-5));
  CHECK_FALSE(fm->is_classifier());
}

TEST_CASE("losses at scores of any size are finite, and exact when one of the two terms vanishes") {
  CHECK(logistic_loss(1, 1000).loss == 0.0F);
  CHECK(logistic_loss(1, -1000).loss == 1000.0F);
  CHECK(logistic_loss(-1, 3e38F).loss == 3e38F);
  CHECK(logistic_loss(1, 1000).slope == 0.0F);
  CHECK(logistic_loss(1, -1000).slope == -1.0F);
  CHECK(logistic_loss(-1, 1000).slope == 1.0F);
  CHECK(double(logistic_loss(1, 20).loss) == doctest::Approx(std::log1p(std::exp(-20.0))).epsilon(1e-6));
  CHECK(double(logistic_loss(1, 20).slope) == doctest::Approx(-1 / (1 + std::exp(20.0))).epsilon(1e-6));
  CHECK(double(logistic_loss(1, 0).loss) == doctest::Approx(std::log(2.0)));
  CHECK(std::isnan(logistic_loss(1, std::numeric_limits<float>::quiet_NaN()).loss));
  CHECK(std::isnan(hinge_loss(1, std::numeric_limits<float>::quiet_NaN()).loss));
  CHECK(hinge_loss(1, 1).loss == 0.0F);
  CHECK(hinge_loss(-1, 2).loss == 3.0F);
}

TEST_CASE("the greater of two labels is the positive one, whatever they are") {
  struct Case {
    float low, high;
  };
  for (const Case labels : {Case{-1, 1}, Case{0, 1}, Case{1, 2}}) {
    const auto model = make_sparse_model("logistic", features_info(3, labels.low, labels.high), {});
    CHECK(model->is_positive(labels.high));
    CHECK_FALSE(model->is_positive(labels.low));
    CHECK(model->loss(labels.high, 5) < model->loss(labels.low, 5));
  }
}

TEST_CASE("a row's initial values are a function of seed and row, however the table is partitioned") {
  for (const char* name : {"mf", "fm"}) {
    const auto model = make_sparse_model(name, ratings_info(), {.factors = 3});
    std::vector<float> all(5 * 4), part(2 * 4), other(5 * 4);
    model->initialize(1, 0, all);
    model->initialize(1, 3, part);
    model->initialize(2, 0, other);
    CHECK(std::equal(part.begin(), part.end(), all.begin() + 3 * 4));
    CHECK(all != other);
    for (std::size_t row = 0; row < 5; ++row) {
      CHECK(all[row * 4] == 0.0F);
      for (std::size_t k = 1; k < 4; ++k) CHECK(std::fabs(all[row * 4 + k]) <= 0.01F * std::sqrt(3.0F));
    }
  }
}

TEST_CASE("initial factors have mean 0 and their model's deviation") {
  SparseInfo info = ratings_info();
  info.features = 20'000;
  const auto model = make_sparse_model("mf", info, {.factors = 4});
  std::vector<float> table(20'000 * 5);
  model->initialize(1, 0, table);
  double sum = 0, squares = 0;
  for (const float value : table) sum += double(value), squares += double(value) * double(value);
  CHECK(std::fabs(sum / 80'000) < 0.0001);  // three standard errors of the mean: 0.000106
  CHECK(std::sqrt(squares / 80'000) == doctest::Approx(0.01).epsilon(0.01));
}

TEST_CASE("data that does not suit a model is refused with a description of data that does") {
  SparseInfo many = features_info(3, 0, 9);
  many.distinct_labels = 3;
  for (const char* name : {"logistic", "svm", "fm"})
    CHECK_THROWS_WITH_AS(make_sparse_model(name, many, {}),
                         doctest::Contains("two-class model, but the data has more labels, from 0 to 9"),
                         ps_shm::Error);
  SparseInfo one = features_info(3, 1, 1);
  one.distinct_labels = 1;
  for (const char* name : {"logistic", "svm", "fm"})
    CHECK_THROWS_WITH_AS(make_sparse_model(name, one, {}),
                         doctest::Contains("all examples of the data have the label 1"), ps_shm::Error);
  SparseInfo same = ratings_info();
  same.distinct_labels = 1;
  CHECK(make_sparse_model("fm", same, {}) != nullptr);
  CHECK_THROWS_WITH_AS(make_sparse_model("mf", features_info(3), {}), doctest::Contains("logistic, svm or fm"),
                       ps_shm::Error);
  for (const char* name : {"logistic", "svm"})
    CHECK_THROWS_WITH_AS(make_sparse_model(name, ratings_info(), {}), doctest::Contains("mf or fm"), ps_shm::Error);
  CHECK_THROWS_WITH_AS(make_sparse_model("mlp", features_info(3), {}), doctest::Contains("logistic, svm, mf or fm"),
                       ps_shm::Error);
  CHECK_THROWS_WITH_AS(make_sparse_model("svm", features_info(0), {}), doctest::Contains("no feature"), ps_shm::Error);
  CHECK(make_sparse_model("svm", features_info(0), {.bias = true})->table().count() == 1);
  CHECK_THROWS_WITH_AS(make_sparse_model("svm", features_info(std::uint64_t{1} << 32), {}),
                       doctest::Contains("`hash-bits` 31"), ps_shm::Error);
}
