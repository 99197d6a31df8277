#include "train/data/sparse/generated.hpp"

#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "support/sparse_texts.hpp"
#include "train/data/sparse/zipf.hpp"

namespace {

using namespace ps_shm;
using namespace ps_shm::test;
using train::SparseData;
using train::SparseExample;
using train::ZipfSampler;

SparseData made(const std::string& source) { return SparseData::read(source, {}); }

}  // namespace

TEST_CASE("zipf: the frequency of each number follows the distribution") {
  constexpr std::uint64_t kNumbers = 40;
  constexpr int kDraws = 200'000;
  for (const double exponent : {0.0, 0.5, 0.8, 1.0, 1.5, 3.0}) {
    CAPTURE(exponent);
    const ZipfSampler zipf(kNumbers, exponent);
    std::mt19937_64 random(7);
    std::vector<double> counts(kNumbers + 1);
    for (int i = 0; i < kDraws; ++i) ++counts.at(zipf(random));
    double sum = 0, chi = 0;
    for (std::uint64_t k = 1; k <= kNumbers; ++k) sum += std::pow(double(k), -exponent);
    for (std::uint64_t k = 1; k <= kNumbers; ++k) {
      const double expected = kDraws * std::pow(double(k), -exponent) / sum;
      chi += (counts[k] - expected) * (counts[k] - expected) / expected;
    }
    CHECK(counts[0] == 0);
    CHECK(chi < 39 + 5 * std::sqrt(2.0 * 39));  // mean and deviation of chi squared with 39 degrees of freedom
  }
  std::mt19937_64 random(7);
  for (int i = 0; i < 100; ++i) CHECK(ZipfSampler(1, 0.8)(random) == 1);
}

TEST_CASE("generated: keyed data has the same examples, with more features than ids can number") {
  train::SparseSourceOptions options;
  options.keyed = true;
  for (const char* source : {"zipf:300x200x8", "ratings:20x30x200"}) {
    const SparseData with_ids = made(source), with_keys = SparseData::read(source, options);
    std::vector<std::uint64_t> ids, keys;
    std::vector<float> labels, of_keyed;
    train::for_each_example(with_ids, {}, [&](const SparseExample& example) {
      ids.insert(ids.end(), example.ids.begin(), example.ids.end());
      labels.push_back(example.label);
    });
    train::for_each_example(with_keys, {}, [&](const SparseExample& example) {
      keys.insert(keys.end(), example.keys.begin(), example.keys.end());
      of_keyed.push_back(example.label);
    });
    CHECK(keys == ids);
    CHECK(of_keyed == labels);
    CHECK(with_keys.info().features == 0);
  }
  std::uint64_t highest = 0;
  train::for_each_example(SparseData::read("zipf:1000000000000x50x20x0.3", options), {},
                          [&](const SparseExample& example) { highest = std::max(highest, example.keys.back()); });
  CHECK(highest > 1'000'000'000);
  CHECK(highest < 1'000'000'000'000);
}

TEST_CASE("generated: rows have different ascending features, the low ones more often, and values of norm 1") {
  const SparseData data = made("zipf:1000x4000x20x0.8");
  CHECK(data.info().examples == 4000);
  CHECK(data.info().features == 1000);
  CHECK(data.info().nonzeros == 80'000);
  CHECK(data.info().distinct_labels == 2);
  CHECK(data.info().label_min == -1);
  CHECK(std::abs(data.info().label_sum) < 2400);  // neither label is rare
  train::for_each_example(data, {}, [](const SparseExample& example) {
    REQUIRE(example.ids.size() == 20);
    double square = 0;
    for (std::size_t i = 0; i < 20; ++i) {
      REQUIRE(example.ids[i] < 1000);
      REQUIRE((i == 0 || example.ids[i - 1] < example.ids[i]));
      square += double(example.values[i]) * double(example.values[i]);
    }
    REQUIRE(square == doctest::Approx(1.0));
  });
  const auto counts = data.occurrences();
  std::uint64_t first = 0, last = 0;
  for (std::size_t i = 0; i < 100; ++i) first += counts[i], last += counts[900 + i];
  CHECK(first > 3 * last);  // 100^0.2 against 1000^0.2 - 900^0.2 of the draws, less the repeated ones of a row
  CHECK(counts[0] > counts[99]);
}

TEST_CASE("generated: omitted sizes have their defaults, and the same sizes give the same examples") {
  const SparseData data = made("zipf:2000x30"), full = made("zipf:2000x30x50x0.8");
  CHECK(data.info().nonzeros == 1500);
  CHECK(examples_of(data) == examples_of(full));
  CHECK(examples_of(data) != examples_of(made("zipf:2000x30x50x0.7")));
  CHECK(made("zipf:7x5").info().nonzeros == 35);
  CHECK(examples_of(made("zipf:5x2x5x4"))[1].ids == std::vector<std::uint32_t>{0, 1, 2, 3, 4});
}

TEST_CASE("generated: the labels follow a linear model") {
  const SparseData data = made("zipf:50x20000x10x0.5");
  std::vector<double> weights(50);  // averaged perceptron
  std::vector<double> sums(50);
  const auto score = [](const std::vector<double>& w, const SparseExample& example) {
    double s = 0;
    for (const std::uint32_t id : example.ids) s += w[id];
    return s;
  };
  const train::SparsePart training{.test_share = 0.2, .is_test = false}, test{.test_share = 0.2, .is_test = true};
  for (int epoch = 0; epoch < 3; ++epoch)
    train::for_each_example(data, training, [&](const SparseExample& example) {
      if (score(weights, example) * double(example.label) <= 0)
        for (const std::uint32_t id : example.ids) weights[id] += double(example.label);
      for (std::size_t i = 0; i < 50; ++i) sums[i] += weights[i];
    });
  double right = 0, all = 0;
  train::for_each_example(data, test, [&](const SparseExample& example) {
    right += score(sums, example) * double(example.label) > 0;
    ++all;
  });
  CHECK(right / all > 0.78);
  CHECK(right / all < 0.95);  // there is noise
}

TEST_CASE("generated: ratings are integers, from 1 to 5, with biases and popular items") {
  const SparseData data = made("ratings:200x100x20000");
  CHECK(data.info().kind == train::SparseKind::kRatings);
  CHECK(data.info().users == 200);
  CHECK(data.info().items == 100);
  CHECK(data.info().features == 300);
  CHECK(data.info().label_min == 1);
  CHECK(data.info().label_max == 5);
  std::vector<double> sums(300), counts(300);
  double square = 0;
  const double mean = data.info().label_sum / 20'000;
  CHECK(mean == doctest::Approx(3.0).epsilon(0.1));
  train::for_each_example(data, {}, [&](const SparseExample& example) {
    REQUIRE(example.ids.size() == 2);
    REQUIRE(example.ids[0] < 200);
    REQUIRE(example.ids[1] >= 200);
    REQUIRE(example.values[1] == 1.0F);
    REQUIRE(example.label == std::round(example.label));
    for (const std::uint32_t id : example.ids) sums[id] += double(example.label) - mean, ++counts[id];
    square += (double(example.label) - mean) * (double(example.label) - mean);
  });
  CHECK(counts[200] > 5 * counts[299]);
  double left = 0;
  train::for_each_example(data, {}, [&](const SparseExample& example) {
    double guess = mean;
    for (const std::uint32_t id : example.ids) guess += sums[id] / counts[id];
    left += (double(example.label) - guess) * (double(example.label) - guess);
  });
  CHECK(left < 0.75 * square);  // biases explain a third and more
}

TEST_CASE("generated: invalid sizes are errors that name the source") {
  for (const char* source : {"zipf:", "zipf:10", "zipf:0x5", "zipf:10x0", "zipf:10x5x11", "zipf:10x5x2x-1",
                             "zipf:10x5x2xnan", "zipf:10x5x2x5", "zipf:10x5x2x1x1", "zipf:1.5x5", "zipf:-1x5",
                             "zipf:4294967297x5", "zipf:10x", "zipf:99999999999999999999x5", "ratings:", "ratings:5x5",
                             "ratings:5x5x5x5", "ratings:0x5x5", "ratings:5x4294967296x5"}) {
    CAPTURE(source);
    CHECK(error_of([&] { made(source); }).find(std::string(source) + ": ") == 0);
  }
}

TEST_CASE("generated: generating examples stops on request") {
  train::SparseSourceOptions options;
  options.stop_requested = [] { return true; };
  CHECK_THROWS_AS(SparseData::read("zipf:1000x1000000", options), Interrupted);
}
