#include "train/loop/sparse_trainer.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "ps_shm/errors.hpp"
#include "ps_shm/server.hpp"
#include "support/job.hpp"
#include "support/rule_reference.hpp"
#include "train/loop/row_decay.hpp"
#include "train/models/sparse/row_set.hpp"
#include "train/models/sparse/sparse_metrics.hpp"

namespace {

using namespace ps_shm;
using namespace ps_shm::train;

SparseData zipf() { return SparseData::read("zipf:200x600x8", {}); }
SparseData ratings() { return SparseData::read("ratings:60x40x1500", {}); }

JobConfig config_with(UpdateRule rule, std::uint64_t steps) {
  JobConfig config;
  config.optimizer.rule = rule;
  config.steps = steps;
  config.seed = 5;
  return config;
}

// The table after a job with one worker.
std::vector<float> train_in_job(JobConfig config, SparseModel& model, const SparseData& data, const SparsePart& part,
                                const SparseTrainOptions& options) {
  const test::JobName name;
  config.job = name.text();
  Server server(config);
  WorkerOptions of_worker;
  of_worker.job = name.text();
  Worker worker(of_worker);
  std::optional<Variable> table;
  const TrainTotals totals = train_sparse(worker, model, data, part, options, &table);
  CHECK(totals.last.steps == config.steps);
  CHECK(totals.last.examples == config.steps * options.batch);
  CHECK(totals.phases.push > 0);
  std::vector<float> values(table->element_count());
  worker.pull(*table, values);
  return values;
}

}  // namespace

TEST_CASE("a job with one worker computes the same bits as the loop without a server, for every rule and model") {
  const SparseData features = zipf(), stars = ratings();
  for (const UpdateRule rule :
       {UpdateRule::kSgd, UpdateRule::kMomentum, UpdateRule::kNesterov, UpdateRule::kAdagrad, UpdateRule::kRmsProp,
        UpdateRule::kAdam, UpdateRule::kFtrl, UpdateRule::kRowwiseAdagrad})
    for (const char* name : {"logistic", "svm", "mf", "fm"})
      for (const std::size_t combine : {1U, 7U}) {
        if (!test::works_in_place(rule)) continue;
        CAPTURE(std::string(to_string(rule)));
        CAPTURE(name);
        CAPTURE(combine);
        const SparseData& data = name == std::string("mf") ? stars : features;
        JobConfig config = config_with(rule, 12);
        config.optimizer.l2 = 0.001F;
        config.optimizer.l1 = 0.001F;
        config.optimizer.lr = 0.01F;
        if (rule != UpdateRule::kFtrl) config.optimizer.schedule = Schedule::parse("step:0.5:5");
        SparseTrainOptions options;
        options.batch = 50;
        options.combine = combine;
        const SparsePart part{0.2, false};
        const auto model = make_sparse_model(name, data.info(), {.factors = 3});
        const SparseAloneResult alone = train_sparse_alone(config, *model, data, part, options);
        CHECK(alone.last.steps == 12);
        const std::vector<float> in_job = train_in_job(config, *model, data, part, options);
        CHECK(in_job == alone.table);
        std::vector<float> first(in_job.size());
        model->initialize(*config.seed, 0, first);
        CHECK(in_job != first);
      }
}

TEST_CASE("keyed data with a table by key trains to the bits of ids, for every rule of linear models") {
  const SparseData data = zipf();
  SparseSourceOptions keyed;
  keyed.keyed = true;
  const SparseData with_keys = SparseData::read("zipf:200x600x8", keyed);
  std::vector<std::uint64_t> keys(200);
  std::iota(keys.begin(), keys.end(), 0);
  keys.push_back(kBiasKey);
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kAdagrad, UpdateRule::kAdam, UpdateRule::kFtrl})
    for (const char* model_name : {"logistic", "svm"})
      for (const std::size_t combine : {1U, 7U}) {
        if (!test::works_in_place(rule)) continue;
        CAPTURE(std::string(to_string(rule)));
        CAPTURE(model_name);
        CAPTURE(combine);
        JobConfig config = config_with(rule, 12);
        config.optimizer.l2 = 0.001F;
        config.optimizer.lr = 0.01F;
        SparseTrainOptions options;
        options.batch = 50;
        options.combine = combine;
        const SparsePart part{0.2, false};
        const auto model = make_sparse_model(model_name, data.info(), {.bias = true});
        const std::vector<float> expected = train_sparse_alone(config, *model, data, part, options).table;

        const auto of_keys = make_sparse_model(model_name, with_keys.info(), {.bias = true});
        const test::JobName name;
        config.job = name.text();
        Server server(config);
        Worker worker({.job = name.text()});
        std::optional<Table> table;
        train_keyed(worker, *of_keys, with_keys, part, options, {.max_rows = 300}, &table);
        std::vector<float> values(keys.size());
        CHECK(table->pull(keys, values) > 150);
        CHECK(values == expected);
        CHECK(evaluate(*of_keys, *table, with_keys, {0.2, true}).loss ==
              evaluate(*model, expected, 200, data, {0.2, true}).loss);
      }
}

TEST_CASE("factors in a table by key come as far as those of ids, and a table that is too small comes less far") {
  SparseSourceOptions keyed;
  keyed.keyed = true;
  const SparseData stars = SparseData::read("ratings:300x200x20000", {}),
                   with_keys = SparseData::read("ratings:300x200x20000", keyed);
  JobConfig config = config_with(UpdateRule::kAdagrad, 1800);  // ten epochs
  config.optimizer.lr = 0.05F;
  SparseTrainOptions options;
  const SparsePart part{0.1, false}, test{0.1, true};
  for (const char* model_name : {"mf", "fm"}) {
    CAPTURE(model_name);
    const auto model = make_sparse_model(model_name, stars.info(), {.factors = 4});
    const double with_ids =
        *evaluate(*model, train_sparse_alone(config, *model, stars, part, options).table, 500, stars, test).rmse;
    const auto rmse_in = [&](const TableOptions& rows) {
      const test::JobName name;
      config.job = name.text();
      Server server(config);
      Worker worker({.job = name.text()});
      std::optional<Table> table;
      const auto of_keys = make_sparse_model(model_name, with_keys.info(), {.factors = 4});
      train_keyed(worker, *of_keys, with_keys, part, options, rows, &table);
      CHECK(table->statistics().rows <= rows.max_rows);
      return *evaluate(*of_keys, *table, with_keys, test).rmse;
    };
    CHECK(rmse_in({.max_rows = 500}) == doctest::Approx(with_ids).epsilon(0.03));
    CHECK(rmse_in({.max_rows = 64}) > 1.1 * with_ids);
  }
}

TEST_CASE("keys are regularised by the number of examples that have them, a bias not at all") {
  SparseSourceOptions keyed;
  keyed.keyed = true;
  const SparseData data = SparseData::parse("1 5:1 6:1\n1 5:1\n-1 5:1 7:1\n-1 8:1\n", "test", keyed);
  const RowDecay decay({1.0F, 0.0F}, data, {}, 0);
  const std::vector<std::uint64_t> keys = {5, 6, 7, 8, kBiasKey};
  const std::vector<float> rows(5, 1.0F);
  std::vector<float> gradients(5);
  decay.add_to(std::span<const std::uint64_t>(keys), 1, rows.data(), gradients.data());
  // n / d of 4 examples; no other key has both cells of one of these.
  CHECK(gradients == std::vector<float>{4.0F / 3, 4, 4, 4, 0});
}

TEST_CASE("clipping limits the norm of each push, with and without a job") {
  const SparseData data = zipf();
  const auto model = make_sparse_model("logistic", data.info(), {.bias = true});
  JobConfig config = config_with(UpdateRule::kSgd, 10);
  SparseTrainOptions options;
  const std::vector<float> free = train_sparse_alone(config, *model, data, {}, options).table;
  config.optimizer.clip_norm = 0.1F;
  const std::vector<float> clipped = train_sparse_alone(config, *model, data, {}, options).table;
  CHECK(clipped != free);
  CHECK(train_in_job(config, *model, data, {}, options) == clipped);
}

TEST_CASE("combined examples move as far as their single steps from one point") {
  const SparseData data = SparseData::parse("+1 1:1 3:2\n-1 1:3\n+1 2:1 3:1\n", "test", {});
  const auto model = make_sparse_model("logistic", data.info(), {});
  JobConfig config = config_with(UpdateRule::kSgd, 1);
  config.optimizer.lr = 0.5F;
  SparseTrainOptions options;
  options.batch = options.combine = 3;
  const std::vector<float> table = train_sparse_alone(config, *model, data, {}, options).table;
  // At 0 the slope of each loss is -label / 2.
  CHECK(table[0] == doctest::Approx(0.5 * (0.5 * 1 - 0.5 * 3)));
  CHECK(table[1] == doctest::Approx(0.5 * 0.5 * 1));
  CHECK(table[2] == doctest::Approx(0.5 * (0.5 * 2 + 0.5 * 1)));
}

TEST_CASE("the examples' fractions of L2 add up to l2 times the weights") {
  const SparseData data = zipf();
  const SparsePart part{0.3, false};
  const std::size_t width = 2, rows = data.info().features + 1;  // a bias after the features
  constexpr RowL2 kL2{0.25F, 0.5F};  // of the first float of a row, and of the following ones
  const RowDecay decay(kL2, data, part, rows);
  std::mt19937_64 random(1);
  std::vector<float> table(rows * width);
  for (float& value : table) value = float(random() % 1000) / 500 - 1;
  std::vector<double> sums(rows * width);
  std::vector<std::uint32_t> seen(rows);
  std::uint64_t examples = 0;
  for_each_example(data, part, [&](const SparseExample& example) {
    ++examples;
    std::vector<std::uint32_t> ids(example.ids.begin(), example.ids.end());
    ids.push_back(std::uint32_t(rows - 1));
    std::vector<float> values, gradients(ids.size() * width, 0.0F);
    for (const std::uint32_t id : ids)
      for (std::size_t k = 0; k < width; ++k) values.push_back(table[id * width + k]);
    decay.add_to(std::span<const std::uint32_t>(ids), width, values.data(), gradients.data());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ++seen[ids[i]];
      for (std::size_t k = 0; k < width; ++k) sums[ids[i] * width + k] += double(gradients[i * width + k]);
    }
  });
  REQUIRE(examples > 300);
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t k = 0; k < width; ++k) {
      const bool is_decayed = seen[row] != 0 && row + 1 != rows;
      CHECK(sums[row * width + k] / double(examples) ==
            doctest::Approx(is_decayed ? double((k == 0 ? kL2.first : kL2.factors) * table[row * width + k]) : 0.0)
                .epsilon(1e-5));
    }
}

TEST_CASE("training converges to the minimum of mean loss and L2, where the gradient of both is 0") {
  const SparseData data = SparseData::read("zipf:20x300x5", {});
  const auto model = make_sparse_model("logistic", data.info(), {});
  JobConfig config = config_with(UpdateRule::kSgd, 4000);
  config.optimizer.l2 = 0.05F;
  config.optimizer.lr = 0.02F;
  config.optimizer.schedule = Schedule::parse("exp:0.5:400");
  SparseTrainOptions options;
  options.batch = 300;
  const std::vector<float> table = train_sparse_alone(config, *model, data, {}, options).table;
  std::vector<double> gradient(table.size());
  for (std::size_t i = 0; i < table.size(); ++i) gradient[i] = 0.05 * double(table[i]);
  for_each_example(data, {}, [&](const SparseExample& example) {
    std::vector<float> rows, own(example.ids.size());
    for (const std::uint32_t id : example.ids) rows.push_back(table[id]);
    model->gradient(example, rows.data(), own.data());
    for (std::size_t i = 0; i < own.size(); ++i) gradient[example.ids[i]] += double(own[i]) / 300;
  });
  for (std::size_t i = 0; i < table.size(); ++i) {
    CAPTURE(i);
    CHECK(std::fabs(gradient[i]) < 1e-3);
  }
}

TEST_CASE("sync mode is refused with a list of modes, and so are rules that rows do not support") {
  const SparseData data = zipf();
  const auto model = make_sparse_model("logistic", data.info(), {});
  JobConfig config = config_with(UpdateRule::kSgd, 1);
  config.mode = Mode::kSync;
  CHECK_THROWS_WITH_AS(train_in_job(config, *model, data, {}, {}), doctest::Contains("`mode` async or ssp"), Error);
  config = config_with(UpdateRule::kAdd, 1);
  CHECK_THROWS_WITH_AS(train_in_job(config, *model, data, {}, {}), doctest::Contains("sgd or adagrad"), Error);
  CHECK_THROWS_WITH_AS(train_sparse_alone(config, *model, data, {}, {}), doctest::Contains("sgd or adagrad"), Error);
  config = config_with(UpdateRule::kFtrl, 1);
  config.optimizer.schedule = Schedule::parse("exp:0.5:5");
  CHECK_THROWS_WITH_AS(train_sparse_alone(config, *model, data, {}, {}), doctest::Contains("constant"), Error);
}

TEST_CASE("a requested stop ends training after the step") {
  const SparseData data = zipf();
  const auto model = make_sparse_model("logistic", data.info(), {});
  int asked = 0;
  SparseTrainOptions options;
  options.stop_requested = [&] { return ++asked > 3; };
  const SparseAloneResult result =
      train_sparse_alone(config_with(UpdateRule::kSgd, 1'000'000), *model, data, {}, options);
  CHECK(result.is_interrupted);
  CHECK(result.last.steps < 10);
}

TEST_CASE("a NaN loss gives one warning with on-nan warn") {
  const SparseData data = SparseData::parse("+1 1:1e30\n-1 1:-1e30\n", "test", {});
  const auto model = make_sparse_model("svm", data.info(), {});
  JobConfig config = config_with(UpdateRule::kSgd, 20);
  config.optimizer.lr = 1e30F;
  std::vector<std::string> warnings;
  SparseTrainOptions options;
  options.on_nan = OnNan::kWarn;
  options.warn = [&](const std::string& line) { warnings.push_back(line); };
  train_sparse_alone(config, *model, SparseData::parse("+1 1:1e30\n-1 1:1e30\n", "test", {}), {}, options);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("not finite") != std::string::npos);
}

TEST_CASE("a guard against NaN keeps the gradients of such examples out of the table, with and without a job") {
  // The second example's score is -inf and its loss infinite; the first one's are finite.
  const SparseData data = SparseData::parse("-1 1:1\n+1 2:3e38 3:3e38\n", "test", {});
  const auto model = make_sparse_model("logistic", data.info(), {});
  for (const std::size_t combine : {1U, 2U}) {
    CAPTURE(combine);
    JobConfig config = config_with(UpdateRule::kSgd, 6);
    SparseTrainOptions options;
    options.batch = 2;
    options.combine = combine;
    options.on_nan = OnNan::kSkip;
    const auto first_values = [](const std::string&, std::span<float> values) {
      values[0] = 0;
      values[1] = values[2] = -3e38F;
    };
    options.first_values = first_values;
    std::vector<std::string> said;
    options.warn = [&](const std::string& line) { said.push_back(line); };
    const std::vector<float> alone = train_sparse_alone(config, *model, data, {}, options).table;
    CHECK(train_in_job(config, *model, data, {}, options) == alone);
    CHECK(alone[1] == -3e38F);
    CHECK((alone[0] < 0) == (combine == 1));  // in one batch both are skipped
    CHECK(said.size() == 2 * 3);              // the 1st, 2nd and 4th of 6, without and with the job
    options.on_nan = OnNan::kStop;
    CHECK_THROWS_WITH_AS(train_sparse_alone(config, *model, data, {}, options),
                         doctest::Contains("standalone stops: the loss is"), Error);
    CHECK_THROWS_WITH_AS(train_in_job(config, *model, data, {}, options),
                         doctest::Contains("worker 0 stops: the loss is"), Error);
    options.on_nan = OnNan::kWarn;
    CHECK(train_sparse_alone(config, *model, data, {}, options).table != alone);
  }
}

TEST_CASE("a set of rows numbers different ids as they come, round after round") {
  RowSet set;
  std::mt19937_64 random(1);
  for (std::size_t round = 0; round < 200; ++round) {
    const std::size_t count = random() % 300;
    set.begin(count);
    std::vector<std::uint32_t> expected;
    for (std::size_t i = 0; i < count; ++i) {
      const auto id = std::uint32_t(round % 2 == 0 ? random() : random() % 50);
      const auto found = std::find(expected.begin(), expected.end(), id);
      const std::uint32_t number = set.number_of(id);
      CHECK(number == std::uint32_t(found - expected.begin()));
      if (found == expected.end()) expected.push_back(id);
    }
    CHECK(std::equal(expected.begin(), expected.end(), set.ids().begin(), set.ids().end()));
  }
}

TEST_CASE("the examples of a part are counted without reading them") {
  const SparseData data = zipf();
  for (const double share : {0.0, 0.1, 0.5}) {
    std::uint64_t training = 0;
    for_each_example(data, {share, false}, [&](const SparseExample&) { ++training; });
    CHECK(count_examples(data.info(), {share, false}) == training);
    CHECK(count_examples(data.info(), {share, true}) == 600 - training);
  }
}
