#include "train/data/synthetic.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include <doctest/doctest.h>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_config.hpp"
#include "train/loop/trainer.hpp"

namespace {

using ps_shm::train::Dataset;
using ps_shm::train::DataSplit;
using ps_shm::train::load_data;

std::string error_of(const std::string& source) {
  try {
    load_data(source, {});
  } catch (const ps_shm::Error& error) {
    return error.what();
  }
  return "no error";
}

void check_dataset(const Dataset& data, std::size_t count, std::size_t features, std::size_t classes) {
  CHECK(data.count == count);
  CHECK(data.features == features);
  CHECK(data.classes == classes);
  CHECK(data.images.size() == count * features);
  CHECK(data.labels.size() == count);
  CHECK(std::all_of(data.images.begin(), data.images.end(), [](float value) { return value >= 0 && value <= 1; }));
  CHECK(std::all_of(data.labels.begin(), data.labels.end(), [&](auto label) { return label < classes; }));
}

}  // namespace

TEST_CASE("synthetic data: sizes are as requested, with a quarter as many examples for testing") {
  const DataSplit data = load_data("synthetic:300x7x100", {});
  CHECK(data.name == "synthetic:300x7x100");
  check_dataset(data.train, 100, 300, 7);
  check_dataset(data.test, 25, 300, 7);
}

TEST_CASE("synthetic data: a thousand examples by default") {
  const DataSplit data = load_data("synthetic:5x3", {});
  check_dataset(data.train, 1000, 5, 3);
  check_dataset(data.test, 250, 5, 3);
}

TEST_CASE("synthetic data: every class occurs, and no two examples are the same") {
  const DataSplit data = load_data("synthetic:40x10x2000", {});
  CHECK(std::set(data.train.labels.begin(), data.train.labels.end()).size() == 10);
  std::set<float> firsts;
  for (std::size_t i = 0; i < data.train.count; ++i) firsts.insert(data.train.images[40 * i]);
  for (std::size_t i = 0; i < data.test.count; ++i) firsts.insert(data.test.images[40 * i]);
  CHECK(firsts.size() > 2400);
}

TEST_CASE("synthetic data: the same name gives the same examples, another name different ones") {
  const DataSplit first = load_data("synthetic:20x3x50", {}), again = load_data("synthetic:20x3x50", {});
  CHECK(first.train.images == again.train.images);
  CHECK(first.train.labels == again.train.labels);
  CHECK(first.test.images == again.test.images);
  CHECK(load_data("synthetic:20x4x50", {}).train.images != first.train.images);
}

TEST_CASE("synthetic data: an example's norm does not depend on the number of features") {
  for (const char* source : {"synthetic:100x10x50", "synthetic:10000x10x50"}) {
    const DataSplit data = load_data(source, {});
    double squares = 0;
    for (const float value : data.train.images) squares += double(value) * double(value);
    CHECK(std::sqrt(squares / double(data.train.count)) == doctest::Approx(2.1).epsilon(0.05));
  }
}

TEST_CASE("synthetic data: a linear model learns most of it") {
  const DataSplit data = load_data("synthetic:1000x10", {});
  const auto model = ps_shm::train::make_model("softmax", 1000, 10);
  ps_shm::JobConfig config;
  config.steps = 2000;
  config.optimizer.lr = 1.0F;
  ps_shm::train::TrainOptions options;
  options.batch = 10;
  ps_shm::train::TrainResult result = ps_shm::train::train_alone(config, *model, data.train, options);
  CHECK(model->evaluate(result.parameters.values(), data.test).accuracy > 0.75);  // guessing: 0.1
}

TEST_CASE("synthetic data: an invalid size is refused with the accepted form") {
  for (const char* source : {"synthetic:", "synthetic:10", "synthetic:10x", "synthetic:x10", "synthetic:10x10x",
                             "synthetic:10x10x10x10", "synthetic:-1x10", "synthetic:10x10 ", "synthetic:1e3x10"}) {
    CAPTURE(source);
    CHECK(error_of(source).find("synthetic:FEATURESxCLASSES") != std::string::npos);
  }
}

TEST_CASE("synthetic data: impossible sizes are refused") {
  CHECK(error_of("synthetic:0x10").find("features") != std::string::npos);
  CHECK(error_of("synthetic:99999999x10").find("features") != std::string::npos);
  CHECK(error_of("synthetic:10x1").find("classes") != std::string::npos);
  CHECK(error_of("synthetic:10x257").find("classes") != std::string::npos);
  CHECK(error_of("synthetic:10x10x9").find("examples") != std::string::npos);
  CHECK(error_of("synthetic:10x10x18446744073709551615").find("examples") != std::string::npos);
  CHECK(error_of("synthetic:10x10x99999999999999999999999").find("not a size") != std::string::npos);
  CHECK(error_of("synthetic:1000000x10x1000000").find("2 GiB") != std::string::npos);
}
