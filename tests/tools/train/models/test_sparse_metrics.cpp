#include "train/models/sparse/sparse_metrics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "ps_shm/errors.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "support/job.hpp"
#include "train/loop/sparse_trainer.hpp"

namespace {

using namespace ps_shm::train;

// By its definition: over all pairs of a positive and a negative example.
double pairwise_area(const std::vector<Scored>& all) {
  double wins = 0, pairs = 0;
  for (const Scored& positive : all)
    for (const Scored& negative : all) {
      if (!positive.is_positive || negative.is_positive) continue;
      ++pairs;
      wins += positive.score > negative.score ? 1 : positive.score == negative.score ? 0.5 : 0;
    }
  return wins / pairs;
}

double area(std::vector<Scored> all) { return area_under_curve(all); }

SparseData parse(const char* text) { return SparseData::parse(text, "test", {}); }

}  // namespace

TEST_CASE("the area under the curve is that over all pairs, ties counted half") {
  std::mt19937_64 random(1);
  for (const std::uint64_t scores : {2ULL, 5ULL, 1'000'000ULL})
    for (int round = 0; round < 20; ++round) {
      std::vector<Scored> all = {{0, true}, {0, false}};
      for (int i = 0; i < 60; ++i) all.push_back({float(random() % scores), random() % 3 == 0});
      CHECK(area(all) == doctest::Approx(pairwise_area(all)).epsilon(1e-12));
    }
}

TEST_CASE("the area under the curve has its known values") {
  CHECK(area({{1, false}, {2, true}}) == 1.0);
  CHECK(area({{2, false}, {1, true}}) == 0.0);
  CHECK(area({{1, false}, {1, true}, {1, true}}) == 0.5);
  // Fawcett 2006, figure 3: twenty scored examples, whose area is 0.68.
  const std::vector<Scored> fawcett = {{.9F, true},   {.8F, true},   {.7F, false},  {.6F, true},   {.55F, true},
                                       {.54F, true},  {.53F, false}, {.52F, false}, {.51F, true},  {.505F, false},
                                       {.4F, true},   {.39F, false}, {.38F, true},  {.37F, false}, {.36F, false},
                                       {.35F, false}, {.34F, true},  {.33F, false}, {.3F, true},   {.1F, false}};
  CHECK(area(fawcett) == doctest::Approx(0.68));
}

TEST_CASE("the area under the curve is NaN if a label is missing or a score is NaN") {
  CHECK(std::isnan(area({})));
  CHECK(std::isnan(area({{1, true}, {2, true}})));
  CHECK(std::isnan(area({{1, false}})));
  CHECK(std::isnan(area({{1, false}, {std::numeric_limits<float>::quiet_NaN(), true}})));
}

TEST_CASE("metrics of a logistic model are those of its scores, with known weights") {
  const SparseData data = parse("+1 1:1\n-1 1:-2\n+1 2:1\n-1 1:1 2:1\n");
  const auto model = make_sparse_model("logistic", data.info(), {});
  const std::vector<float> table = {1, -3};  // scores 1, -2, -3, -2
  const SparseMetrics metrics = evaluate(*model, table, 2, data, {});
  const double loss = (std::log1p(std::exp(-1.0)) + 2 * std::log1p(std::exp(-2.0)) + std::log1p(std::exp(3.0))) / 4;
  CHECK(metrics.loss == doctest::Approx(loss).epsilon(1e-6));
  CHECK(*metrics.log_loss == metrics.loss);
  CHECK(*metrics.accuracy == 0.75);
  CHECK(*metrics.auc == 0.5);  // 1 beats both, -3 neither
  CHECK_FALSE(metrics.rmse);
}

TEST_CASE("a support vector machine gives no probabilities, so it has no log loss") {
  const SparseData data = parse("+1 1:1\n-1 1:-2\n");
  const auto model = make_sparse_model("svm", data.info(), {});
  const SparseMetrics metrics = evaluate(*model, std::vector<float>{0.5F}, 1, data, {});
  CHECK(metrics.loss == 0.25);
  CHECK(*metrics.accuracy == 1.0);
  CHECK_FALSE(metrics.log_loss);
}

TEST_CASE("a score of 0 predicts the negative label") {
  const SparseData data = parse("+1 1:1\n-1 1:1\n");
  const auto model = make_sparse_model("logistic", data.info(), {});
  CHECK(*evaluate(*model, std::vector<float>{0}, 1, data, {}).accuracy == 0.5);
}

TEST_CASE("the root mean square error of ratings is that of the scores") {
  SparseSourceOptions options;
  options.format = SparseSourceOptions::Format::kRatings;
  const SparseData data = SparseData::parse("a::x::1\na::y::5\nb::x::3\n", "test", options);
  const auto model = make_sparse_model("mf", data.info(), {.factors = 0});
  const std::vector<float> table = {1, 0, 0, -1};  // a, b, x, y; the mean is 3: scores 4, 3, 3
  const SparseMetrics metrics = evaluate(*model, table, 4, data, {});
  CHECK(*metrics.rmse == doctest::Approx(std::sqrt((9.0 + 4.0 + 0.0) / 3)));
  CHECK(metrics.loss == doctest::Approx(13.0 / 6));
  CHECK_FALSE(metrics.accuracy);
  CHECK_FALSE(metrics.auc);
}

TEST_CASE("features of a test set that the training set lacks are ignored, even with a bias") {
  const SparseData training = parse("+1 1:1\n-1 2:1\n"), test = parse("+1 1:1 3:100\n-1 2:1 3:100 4:100\n");
  for (const bool bias : {false, true}) {
    const auto model = make_sparse_model("logistic", training.info(), {.bias = bias});
    std::vector<float> table = {1, -1};
    if (bias) table.push_back(0.5F);
    const SparseMetrics metrics = evaluate(*model, table, 2, test, {});
    CHECK(*metrics.accuracy == 1.0);
    const double shift = bias ? 0.5 : 0.0;
    CHECK(metrics.loss ==
          doctest::Approx((std::log1p(std::exp(-1.0 - shift)) + std::log1p(std::exp(-1.0 + shift))) / 2).epsilon(1e-6));
  }
}

TEST_CASE("features of a test set without a row in the table by key are ignored, even with a bias") {
  const ps_shm::test::JobName name;
  ps_shm::JobConfig config;
  config.job = name.text();
  const ps_shm::Server server(config);
  ps_shm::WorkerOptions of_worker;
  of_worker.job = name.text();
  ps_shm::Worker worker(of_worker);
  SparseSourceOptions options;
  options.keyed = true;
  const SparseData test = SparseData::parse("+1 99:100 1:1\n-1 2:1\n-1 77:5\n", "test", options);
  for (const bool bias : {false, true}) {
    const auto model = make_sparse_model("logistic", test.info(), {.bias = bias});
    // Its initial values would spoil the scores.
    ps_shm::Table table =
        worker.table({.name = bias ? "with" : "without", .max_rows = 64, .initial_range = 0.5F, .seed = 3});
    const std::vector<std::uint64_t> keys = {1, 2, kBiasKey};
    table.assign(std::span(keys).first(bias ? 3 : 2),
                 std::vector<float>(bias ? std::vector<float>{1, -1, 0.5F} : std::vector<float>{1, -1}));
    const double shift = bias ? 0.5 : 0.0;
    const double loss =
        std::log1p(std::exp(-1.0 - shift)) + std::log1p(std::exp(-1.0 + shift)) + std::log1p(std::exp(shift));
    CHECK(evaluate(*model, table, test, {}).loss == doctest::Approx(loss / 3).epsilon(1e-6));
  }
}

TEST_CASE("weights that are NaN give a loss of NaN, and no correct example") {
  const SparseData data = parse("+1 1:1\n-1 1:2\n");
  const auto model = make_sparse_model("logistic", data.info(), {});
  const SparseMetrics metrics =
      evaluate(*model, std::vector<float>{std::numeric_limits<float>::quiet_NaN()}, 1, data, {});
  CHECK(std::isnan(metrics.loss));
  CHECK(*metrics.accuracy == 0.0);
}

TEST_CASE("a part without examples cannot be used for testing") {
  const SparseData data = parse("+1 1:1\n-1 1:2\n");
  const auto model = make_sparse_model("logistic", data.info(), {});
  CHECK_THROWS_WITH_AS(evaluate(*model, std::vector<float>{1}, 1, data, {1e-9, true}),
                       doctest::Contains("there are no test examples"), ps_shm::Error);
}
