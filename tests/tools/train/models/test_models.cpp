#include "train/models/dense/model.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/digits.hpp"
#include "ps_shm/errors.hpp"
#include "train/data/batch_stream.hpp"
#include "train/models/dense/loss.hpp"

namespace {

using ps_shm::train::Batch;
using ps_shm::train::BatchStream;
using ps_shm::train::Dataset;
using ps_shm::train::Metrics;
using ps_shm::train::Model;

// A model's parameters and gradients in the memory of this process.
class Values {
 public:
  explicit Values(const Model& model) {
    for (const auto& spec : model.parameters()) values_.emplace_back(spec.count());
    for (auto& values : values_) {
      pointers_.push_back(values.data());
      readers_.push_back(values.data());
    }
  }

  std::vector<float>& operator[](std::size_t index) { return values_[index]; }
  std::size_t size() const { return values_.size(); }
  std::span<float* const> pointers() const { return pointers_; }
  std::span<const float* const> readers() const { return readers_; }

 private:
  std::vector<std::vector<float>> values_;
  std::vector<float*> pointers_;
  std::vector<const float*> readers_;
};

void initialize(const Model& model, std::uint64_t seed, Values& parameters) {
  for (std::size_t i = 0; i < parameters.size(); ++i) model.initialize(i, seed, parameters[i]);
}

Dataset make_random(std::size_t count, std::size_t features, std::size_t classes) {
  std::mt19937_64 generator(count * 31 + features);
  Dataset data;
  data.count = count;
  data.features = features;
  data.classes = classes;
  for (std::size_t i = 0; i < count * features; ++i) {
    data.images.push_back(static_cast<float>(generator() >> 40) * 0x1.0p-24F);
  }
  for (std::size_t i = 0; i < count; ++i) data.labels.push_back(static_cast<std::uint8_t>(generator() % classes));
  return data;
}

// The loss by its definition and in double precision, for any number of layers.
double reference_loss(const std::vector<std::vector<double>>& parameters, const Dataset& data) {
  double total = 0.0;
  for (std::size_t i = 0; i < data.count; ++i) {
    std::vector<double> values(data.images.begin() + static_cast<std::ptrdiff_t>(i * data.features),
                               data.images.begin() + static_cast<std::ptrdiff_t>((i + 1) * data.features));
    for (std::size_t layer = 0; layer < parameters.size(); layer += 2) {
      std::vector<double> outputs = parameters[layer + 1];
      for (std::size_t j = 0; j < outputs.size(); ++j) {
        for (std::size_t k = 0; k < values.size(); ++k) {
          outputs[j] += values[k] * parameters[layer][k * outputs.size() + j];
        }
        if (layer + 2 < parameters.size()) outputs[j] = std::max(outputs[j], 0.0);
      }
      values = outputs;
    }
    double exponentials = 0.0;
    for (const double value : values) exponentials += std::exp(value);
    total += std::log(exponentials) - values[data.labels[i]];
  }
  return total / static_cast<double>(data.count);
}

void check_gradient(const std::string& name, std::size_t count, std::size_t features, std::size_t classes) {
  CAPTURE(name);
  CAPTURE(count);
  CAPTURE(features);
  CAPTURE(classes);
  const Dataset data = make_random(count, features, classes);
  const auto model = ps_shm::train::make_model(name, features, classes);
  Values parameters(*model);
  Values gradients(*model);
  initialize(*model, 5, parameters);
  std::vector<std::vector<double>> exact;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (float& value : parameters[i]) value += 0.01F;  // biases too must not be 0
    exact.emplace_back(parameters[i].begin(), parameters[i].end());
    std::fill(gradients[i].begin(), gradients[i].end(), std::numeric_limits<float>::quiet_NaN());
  }

  const Batch batch = ps_shm::train::slice(data, 0, count);
  const float loss = model->gradient(parameters.readers(), batch, gradients.pointers());

  CHECK(static_cast<double>(loss) == doctest::Approx(reference_loss(exact, data)).epsilon(1e-5));
  double worst = 0.0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    for (std::size_t j = 0; j < exact[i].size(); ++j) {
      constexpr double kStep = 1e-6;
      const double before = exact[i][j];
      exact[i][j] = before + kStep;
      const double above = reference_loss(exact, data);
      exact[i][j] = before - kStep;
      const double below = reference_loss(exact, data);
      exact[i][j] = before;
      worst = std::max(worst, std::abs((above - below) / (2 * kStep) - static_cast<double>(gradients[i][j])));
    }
  }
  CHECK(worst < 1e-6);
}

struct Trained {
  Metrics metrics;
  float last_loss = 0.0F;
};

Trained train_on_digits(const std::string& name, std::uint64_t seed, std::size_t batch_size, std::size_t steps) {
  static const ps_shm::train::DataSplit digits = ps_shm::train::load_data("digits", ps_shm::train::embedded_digits());
  const auto model = ps_shm::train::make_model(name, digits.train.features, digits.train.classes);
  Values parameters(*model);
  Values gradients(*model);
  initialize(*model, seed, parameters);
  BatchStream stream(digits.train, batch_size, seed, 0);
  Trained trained;
  for (std::size_t step = 0; step < steps; ++step) {
    trained.last_loss = model->gradient(parameters.readers(), stream.next(), gradients.pointers());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      for (std::size_t j = 0; j < parameters[i].size(); ++j) parameters[i][j] -= 0.1F * gradients[i][j];
    }
  }
  trained.metrics = model->evaluate(parameters.readers(), digits.test);
  return trained;
}

}  // namespace

TEST_CASE("models: softmax and mlp have the tutorials' parameters, weights are regularised and biases are not") {
  const auto softmax = ps_shm::train::make_model("softmax", 64, 10);
  REQUIRE(softmax->parameters().size() == 2);
  CHECK(softmax->parameters()[0].name == "sm_w");
  CHECK(softmax->parameters()[0].shape == std::vector<std::size_t>{64, 10});
  CHECK(softmax->parameters()[0].regularize);
  CHECK(softmax->parameters()[1].name == "sm_b");
  CHECK(softmax->parameters()[1].count() == 10);
  CHECK_FALSE(softmax->parameters()[1].regularize);

  const auto mlp = ps_shm::train::make_model("mlp", 784, 10);
  std::vector<std::string> names;
  std::vector<std::size_t> counts;
  for (const auto& spec : mlp->parameters()) {
    names.push_back(spec.name);
    counts.push_back(spec.count());
    CHECK(spec.regularize == (spec.shape.size() == 2));
  }
  CHECK(names == std::vector<std::string>{"hid_w", "hid_b", "sm_w", "sm_b"});
  CHECK(counts == std::vector<std::size_t>{784 * 500, 500, 500 * 10, 10});
}

TEST_CASE("models: the hidden layer of the mlp follows the number of features") {
  for (const auto& [features, hidden] :
       {std::pair<std::size_t, std::size_t>{1, 32}, {16, 32}, {64, 128}, {250, 500}, {784, 500}, {3072, 500}}) {
    CHECK(ps_shm::train::make_model("mlp", features, 10)->parameters()[1].count() == hidden);
  }
}

TEST_CASE("models: an unknown name or impossible sizes are refused") {
  CHECK_THROWS_WITH_AS(ps_shm::train::make_model("cnn", 64, 10),
                       doctest::Contains("model 'cnn': no such model; expected count, softmax, mlp"), ps_shm::Error);
  CHECK_THROWS_WITH_AS(ps_shm::train::make_model("mlp", 0, 10), doctest::Contains("0 features"), ps_shm::Error);
  CHECK_THROWS_WITH_AS(ps_shm::train::make_model("mlp", SIZE_MAX, 10), doctest::Contains("features"), ps_shm::Error);
  CHECK_THROWS_WITH_AS(ps_shm::train::make_model("mlp", 64, 257), doctest::Contains("257 classes"), ps_shm::Error);
}

TEST_CASE("models: initial values depend only on the seed and the parameter's name") {
  const auto mlp = ps_shm::train::make_model("mlp", 64, 10);
  const auto other = ps_shm::train::make_model("mlp", 64, 10);
  std::vector<float> first(64 * 128);
  std::vector<float> second(64 * 128);
  mlp->initialize(0, 1, first);
  other->initialize(2, 1, std::span(second).first(128 * 10));
  other->initialize(0, 1, second);
  CHECK(first == second);
  other->initialize(0, 2, second);
  CHECK(first != second);
}

TEST_CASE("models: initial weights are normal, truncated at two deviations of 1 / sqrt(rows), and biases are zero") {
  const auto mlp = ps_shm::train::make_model("mlp", 784, 10);
  std::vector<float> weights(784 * 500);
  mlp->initialize(0, 1, weights);
  double sum = 0.0;
  double squares = 0.0;
  for (const float weight : weights) {
    CHECK_FALSE(std::abs(weight) > 2.0F / 28.0F);
    sum += static_cast<double>(weight);
    squares += static_cast<double>(weight) * static_cast<double>(weight);
  }
  const auto count = static_cast<double>(weights.size());
  CHECK(std::abs(sum / count) < 2e-4);
  // Truncating at two deviations leaves a deviation of 0.8796.
  CHECK(std::sqrt(squares / count) * 28.0 == doctest::Approx(0.8796).epsilon(0.01));
  std::vector<float> biases(500, 1.0F);
  mlp->initialize(1, 1, biases);
  CHECK(biases == std::vector<float>(500, 0.0F));
}

TEST_CASE("models: the gradient is that of the loss, by central differences") {
  check_gradient("softmax", 1, 1, 2);
  check_gradient("softmax", 7, 13, 5);
  check_gradient("softmax", 3, 5, 1);
  check_gradient("mlp", 1, 1, 2);
  check_gradient("mlp", 7, 13, 5);
  check_gradient("mlp", 5, 17, 3);
}

TEST_CASE("models: the gradient is overwritten, not added to, whatever the previous batch size") {
  const Dataset data = make_random(40, 9, 4);
  for (const char* name : {"softmax", "mlp"}) {
    const auto fresh = ps_shm::train::make_model(name, 9, 4);
    const auto used = ps_shm::train::make_model(name, 9, 4);
    Values parameters(*fresh);
    Values expected(*fresh);
    Values found(*fresh);
    initialize(*fresh, 1, parameters);
    const Batch small = ps_shm::train::slice(data, 3, 6);
    const float loss = fresh->gradient(parameters.readers(), small, expected.pointers());
    used->gradient(parameters.readers(), ps_shm::train::slice(data, 0, 40), found.pointers());
    CHECK(used->gradient(parameters.readers(), small, found.pointers()) == loss);
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK(expected[i] == found[i]);
  }
}

TEST_CASE("models: evaluation in pieces gives the mean over the whole data set") {
  const Dataset data = make_random(600, 9, 4);
  const auto model = ps_shm::train::make_model("mlp", 9, 4);
  Values parameters(*model);
  Values gradients(*model);
  initialize(*model, 1, parameters);
  const Metrics metrics = model->evaluate(parameters.readers(), data);
  const float loss = model->gradient(parameters.readers(), ps_shm::train::slice(data, 0, 600), gradients.pointers());
  CHECK(metrics.loss == doctest::Approx(static_cast<double>(loss)).epsilon(1e-5));
  std::size_t correct = 0;
  for (std::size_t i = 0; i < data.count; ++i) {
    Dataset one = data;
    one.images.assign(data.images.begin() + static_cast<std::ptrdiff_t>(i * 9),
                      data.images.begin() + static_cast<std::ptrdiff_t>(i * 9 + 9));
    one.labels.assign(1, data.labels[i]);
    one.count = 1;
    if (model->evaluate(parameters.readers(), one).accuracy == 1.0) ++correct;
  }
  CHECK(metrics.accuracy == doctest::Approx(static_cast<double>(correct) / 600.0));
}

TEST_CASE("models: a NaN among the parameters gives a loss of NaN and no correct examples") {
  const Dataset data = make_random(10, 9, 4);
  for (const char* name : {"softmax", "mlp"}) {
    const auto model = ps_shm::train::make_model(name, 9, 4);
    Values parameters(*model);
    Values gradients(*model);
    std::fill(parameters[0].begin(), parameters[0].end(), std::numeric_limits<float>::quiet_NaN());
    CHECK(std::isnan(model->gradient(parameters.readers(), ps_shm::train::slice(data, 0, 10), gradients.pointers())));
    const Metrics metrics = model->evaluate(parameters.readers(), data);
    CHECK(std::isnan(metrics.loss));
    CHECK(metrics.accuracy == 0.0);
  }
}

TEST_CASE("loss: huge logits neither overflow nor lose the gradient") {
  std::vector<float> logits{1e30F, -1e30F, 0.0F, -5e4F, 5e4F, 0.0F};
  const std::vector<std::uint8_t> labels{0, 1};
  const auto sum = ps_shm::train::softmax_cross_entropy(logits, labels, 3);
  CHECK(sum.loss == 0.0);
  CHECK(sum.correct == 2);
  CHECK(ps_shm::train::softmax_cross_entropy_gradient(logits, labels, 3) == 0.0F);
  CHECK(logits == std::vector<float>(6, 0.0F));
}

TEST_CASE("loss: equal logits give the logarithm of the number of classes, and predict the first class") {
  const std::vector<float> logits(8, 3.0F);
  const std::vector<std::uint8_t> labels{0, 1};
  const auto sum = ps_shm::train::softmax_cross_entropy(logits, labels, 4);
  CHECK(sum.loss == doctest::Approx(2.0 * std::log(4.0)));
  CHECK(sum.correct == 1);
}

TEST_CASE("models: plain gradient descent on the digits reaches 96 % test accuracy with the mlp") {
  const Trained trained = train_on_digits("mlp", 1, 32, 4000);
  CHECK(trained.metrics.accuracy >= 0.96);
  CHECK(trained.metrics.loss < 0.2);
}

TEST_CASE("models: plain gradient descent on the digits reaches 94 % test accuracy with softmax regression") {
  const Trained trained = train_on_digits("softmax", 1, 32, 4000);
  CHECK(trained.metrics.accuracy >= 0.94);
}

TEST_CASE("models: training twice gives the same bits") {
  const Trained once = train_on_digits("mlp", 3, 17, 200);
  const Trained twice = train_on_digits("mlp", 3, 17, 200);
  CHECK(once.last_loss == twice.last_loss);
  CHECK(once.metrics.loss == twice.metrics.loss);
}
