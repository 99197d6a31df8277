// Training of sparse models with GPU workers, on CUDA tables that execute on this machine.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "support/folder.hpp"
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
  config.optimizer.lr = 0.01F;
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
  Worker worker(test::options(config, 0));
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

TEST_CASE("gpu sparse: examples without features, and batches of them, are as on a CPU") {
  const test::Folder folder;
  for (const char* text : {"3\n2\n3\n3\n2 2:1\n", "3 1:0.5 3:1\n2\n3 2:1 3:-2\n2 1:1\n3\n"})
    for (const bool has_bias : {false, true})
      for (const std::size_t combine : {1, 2, 5}) {
        CAPTURE(text);
        CAPTURE(has_bias);
        CAPTURE(combine);
        const SparseData data = SparseData::read(folder.write("examples", text), {});
        const auto model = make_sparse_model("logistic", data.info(), {.bias = has_bias});
        SparseTrainOptions options;
        options.batch = 5;
        options.combine = combine;
        const JobConfig config = config_of(UpdateRule::kAdagrad, 7);
        const Run expected = run(config, *model, data, options);
        Box box;
        options.gpu = box.place();
        check_same(run(config, *model, data, options), expected);
      }
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

TEST_CASE("gpu sparse: gradients are of the rows that the CPU has copied, where rows have moved during a pull") {
  const SparseData data = read(kFeatures, true);
  const auto model = make_sparse_model("logistic", data.info(), {});
  std::vector<std::uint64_t> keys(200);
  std::iota(keys.begin(), keys.end(), 0);

  // Between two steps, or during the pull of the second one, another worker makes the rows anew, with other values.
  struct Mover final : StepObserver {
    std::function<void()> act;
    bool wants(std::uint64_t step) override { return step == 2; }
    void observe(const StepView&) override { act(); }
  };
  const auto train = [&](Box* box) {
    JobConfig config = config_of(UpdateRule::kAdagrad, 5);
    config.workers = 2;
    Server server(config);
    Worker worker(test::options(config, 0)), other(test::options(config, 1));
    std::optional<Table> others;
    const auto move_rows = [&] {
      if (!others) others = other.table(JobView(config.job).tables().at(0).spec);
      std::vector<float> values(keys.size());
      const auto found = std::make_unique<bool[]>(keys.size());
      others->pull(keys, values, {found.get(), keys.size()});
      std::vector<std::uint64_t> there;
      std::copy_if(keys.begin(), keys.end(), std::back_inserter(there), [&](std::uint64_t key) { return found[key]; });
      others->evict(there);
      std::vector<float> moved(there.begin(), there.end());
      for (float& value : moved) value *= 0.02F;
      others->assign(there, moved);
    };
    Mover mover;
    bool has_moved = false;
    mover.act = [&] {
      if (box == nullptr) return move_rows();
      box->cuda.during_keys = [&](const on_cpu::Noted& one) {
        if (has_moved || one.access != on_cpu::Access::kLoad || one.bytes != sizeof(float)) return;
        has_moved = true;
        move_rows();
      };
    };
    SparseTrainOptions options;
    options.batch = options.combine = 20;
    options.observer = &mover;
    if (box != nullptr) options.gpu = box->place();
    std::optional<Table> table;
    const SparseResult result = train_keyed(worker, *model, data, kPart, options, {.max_rows = 300}, &table);
    if (box != nullptr) CHECK(result.gpu->rows->bounced_rows > 0);
    std::vector<float> values(keys.size());
    table->pull(keys, values);
    return values;
  };
  const std::vector<float> expected = train(nullptr);
  Box box;
  const std::vector<float> found = train(&box);
  for (std::size_t i = 0; i < keys.size(); ++i) CHECK(found[i] == doctest::Approx(expected[i]).epsilon(1e-4));
}

TEST_CASE("gpu sparse: workers on a GPU and on a CPU train one table") {
  const SparseData data = read("zipf:200x3000x8");
  JobConfig config = config_of(UpdateRule::kAdagrad, 300);
  config.workers = 3;
  config.optimizer.lr = 0.1F;
  Server server(config);
  Box box;
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    workers.push_back(std::make_unique<Worker>(test::options(config, rank)));
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
