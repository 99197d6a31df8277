// Training of sparse models with GPU workers, on CUDA tables that execute on this machine.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "support/gpu_training.hpp"
#include "support/rule_reference.hpp"
#include "train/loop/sparse_trainer.hpp"
#include "train/models/sparse/sparse_metrics.hpp"

using namespace ps_shm;
using namespace ps_shm::train;
using test::Box;
using test::FakeBox;

namespace {

constexpr const char* kFeatures = "zipf:200x600x8";
constexpr const char* kRatings = "ratings:60x40x1500";

const char* data_of(const std::string& model) { return model == "mf" ? kRatings : kFeatures; }

SparseData read(const char* source, bool keyed = false) {
  SparseSourceOptions options;
  options.keyed = keyed;
  return SparseData::read(source, options);
}

JobConfig config_of(UpdateRule rule, std::uint64_t steps) {
  JobConfig config = test::job(Mode::kAsync, 1, steps);
  config.optimizer.rule = rule;
  config.optimizer.l2 = config.optimizer.l1 = 0.001F;
  config.optimizer.learning_rate = 0.01F;
  config.seed = 5;
  return config;
}

// Sums up the losses that it sees.
struct Losses final : StepObserver {
  std::vector<double> seen;
  bool has_gradients = false;
  bool wants(std::uint64_t) override { return true; }
  void observe(const StepView& view) override {
    seen.push_back(view.loss);
    has_gradients = has_gradients || !view.gradients.empty();
  }
};

struct Run {
  std::vector<float> table;
  std::vector<double> losses;
  SparseResult result;
};

constexpr SparsePart kPart{0.2, false};

// A job of one worker. The table by key is read at `keys`.
Run run(JobConfig config, SparseModel& model, const SparseData& data, SparseTrainOptions options,
        std::span<const std::uint64_t> keys = {}) {
  config.job = test::unique_job_name();
  Server server(config);
  Worker worker(test::member(config, 0));
  Losses losses;
  options.observer = &losses;
  Run made;
  if (keys.empty()) {
    std::optional<Variable> table;
    made.result = train_sparse(worker, model, data, kPart, options, &table);
    made.table.resize(table->element_count());
    worker.pull(*table, made.table);
  } else {
    std::optional<Table> table;
    made.result = train_keyed(worker, model, data, kPart, options, {.max_rows = 300}, &table);
    made.table.resize(keys.size() * model.table().shape[1]);
    table->pull(keys, made.table);
  }
  made.losses = losses.seen;
  CHECK(losses.has_gradients == !options.gpu);
  CHECK(made.result.gpu.has_value() == options.gpu.has_value());
  return made;
}

// Both start from the same values and see the same examples; each sums in float32 in its own order.
void check_same(const Run& found, const Run& expected) {
  REQUIRE(found.table.size() == expected.table.size());
  double worst = 0.0, worst_loss = 0.0;
  for (std::size_t i = 0; i < found.table.size(); ++i)
    worst = std::max(worst, std::abs(double(found.table[i]) - double(expected.table[i])));
  REQUIRE(found.losses.size() == expected.losses.size());
  for (std::size_t i = 0; i < found.losses.size(); ++i)
    worst_loss = std::max(worst_loss, std::abs(found.losses[i] - expected.losses[i]) / (1 + expected.losses[i]));
  CHECK(worst < test::kRounding);
  CHECK(worst_loss < test::kRounding);
  CHECK(found.result.last.steps == expected.result.last.steps);
  CHECK(found.result.last.examples == expected.result.last.examples);
}

}  // namespace

TEST_CASE("gpu sparse: step by step it does the same as a CPU, for every model and for rows of several rules") {
  for (const char* name : {"logistic", "svm", "mf", "fm"}) {
    const SparseData data = read(data_of(name));
    const SparseModelOptions of_model{.factors = 3, .bias = name == std::string("svm")};
    for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kAdagrad, UpdateRule::kFtrl, UpdateRule::kAdam})
      for (const std::size_t combine : {1, 7, 50}) {
        if (!test::works_in_place(rule)) continue;
        CAPTURE(name);
        CAPTURE(std::string(to_string(rule)));
        CAPTURE(combine);
        const auto model = make_sparse_model(name, data.info(), of_model);
        SparseTrainOptions options;
        options.batch = 50;
        options.combine = combine;
        options.factor_l2 = 0.01F;
        const JobConfig config = config_of(rule, 6);
        const Run expected = run(config, *model, data, options);
        Box box;
        options.gpu = box.place();
        const Run found = run(config, *model, data, options);
        check_same(found, expected);
        const GpuRowTransfers& moved = *found.result.gpu->rows;
        const std::uint64_t groups = 6 * ((50 + combine - 1) / combine);
        CHECK(moved.pulls == groups);
        CHECK(moved.pushes == groups);
        CHECK(moved.pulled_rows == moved.given_rows);
        CHECK((combine == 1 ? moved.sent_rows == moved.given_rows : moved.sent_rows < moved.given_rows));
      }
  }
}

TEST_CASE("gpu sparse: a GPU that cannot read shared memory does the same, by copies through the host") {
  const SparseData data = read(kRatings);
  const auto model = make_sparse_model("fm", data.info(), {.factors = 40});
  SparseTrainOptions options;
  options.batch = 33;
  options.combine = 33;
  options.warn = [](const std::string&) {};
  const JobConfig config = config_of(UpdateRule::kAdagrad, 5);
  const Run expected = run(config, *model, data, options);
  Box box(FakeBox{.host_register = false});
  options.gpu = box.place();
  check_same(run(config, *model, data, options), expected);
}

TEST_CASE("gpu sparse: rows by key do the same, while the table grows") {
  std::vector<std::uint64_t> keys(200);
  std::iota(keys.begin(), keys.end(), 0);
  keys.push_back(kBiasKey);
  for (const char* name : {"logistic", "fm"})
    for (const std::size_t combine : {1, 20}) {
      CAPTURE(name);
      CAPTURE(combine);
      const SparseData data = read(kFeatures, true);
      const auto model = make_sparse_model(name, data.info(), {.factors = 3, .bias = name == std::string("logistic")});
      SparseTrainOptions options;
      options.batch = 50;
      options.combine = combine;
      const JobConfig config = config_of(UpdateRule::kAdagrad, 6);
      const Run expected = run(config, *model, data, options, keys);
      Box box;
      options.gpu = box.place();
      check_same(run(config, *model, data, options, keys), expected);
    }
}

TEST_CASE("gpu sparse: workers on a GPU and on a CPU train one table") {
  const SparseData data = read("zipf:200x3000x8");
  JobConfig config = config_of(UpdateRule::kAdagrad, 300);
  config.workers = 3;
  config.optimizer.learning_rate = 0.1F;
  Server server(config);
  Box box;
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    workers.push_back(std::make_unique<Worker>(test::member(config, rank)));
  std::vector<std::thread> threads;
  std::vector<float> values;
  std::vector<std::uint64_t> steps(3);
  test::Pace pace(3);
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      const auto model = make_sparse_model("logistic", data.info(), {});
      SparseTrainOptions options;
      options.batch = options.combine = 20;
      options.stop_requested = [&] { return pace.step(rank), false; };
      if (rank != 2) options.gpu = box.place();
      std::optional<Variable> table;
      steps[rank] = train_sparse(*workers[rank], *model, data, kPart, options, &table).last.steps;
      pace.leave(rank);
    });
  for (std::thread& thread : threads) thread.join();
  const auto model = make_sparse_model("logistic", data.info(), {});
  values.resize(model->table().count());
  workers[0]->pull(workers[0]->variable("w"), values);
  CHECK(*evaluate(*model, values, data.info().features, data, {0.2, true}).accuracy > 0.75);
  CHECK(std::all_of(steps.begin(), steps.end(), [](std::uint64_t own) { return own > 0; }));
}

TEST_CASE("gpu sparse: a batch whose loss is NaN is not pushed with on-nan skip") {
  const SparseData data = read(kFeatures);
  const auto model = make_sparse_model("logistic", data.info(), {});
  SparseTrainOptions options;
  options.batch = options.combine = 30;
  options.on_nan = OnNan::kSkip;
  options.warn = [](const std::string&) {};
  options.first_values = [](const std::string&, std::span<float> values) {
    std::fill(values.begin(), values.end(), std::numeric_limits<float>::quiet_NaN());
  };
  Box box;
  options.gpu = box.place();
  const Run found = run(config_of(UpdateRule::kSgd, 3), *model, data, options);
  CHECK(found.result.gpu->rows->pulls == 3);
  CHECK(found.result.gpu->rows->pushes == 0);
}

TEST_CASE("gpu sparse: an error of the GPU ends the run, and says what it could not do") {
  const SparseData data = read(kFeatures);
  const auto model = make_sparse_model("logistic", data.info(), {});
  SparseTrainOptions options;
  options.batch = 10;
  Box box;
  box.cuda.fail("sparse_gradient", 2, device::kInvalidValue);
  options.gpu = box.place();
  CHECK_THROWS_WITH_AS(run(config_of(UpdateRule::kSgd, 3), *model, data, options),
                       doctest::Contains("compute gradients"), Error);
}
