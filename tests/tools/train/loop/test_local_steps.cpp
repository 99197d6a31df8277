// Local SGD with an outer momentum: what docs/modes.md recommends learns under the worst order of pushes, and what does not
// is warned of. Workers take turns on one thread, so that each difference is applied as late as it can be in a job of
// workers that are equally fast, whatever the machine does.
#include "train/loop/local_steps.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "common/digits.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_control.hpp"
#include "ps_shm/server.hpp"
#include "support/job.hpp"
#include "train/loop/engine.hpp"

namespace {

using namespace ps_shm;
using namespace ps_shm::train;

JobConfig outer_momentum(Mode mode, float lr) {
  JobConfig config;
  config.mode = mode;
  config.workers = 3;
  config.optimizer.rule = UpdateRule::kMomentum;
  config.optimizer.lr = lr;
  config.optimizer.momentum = 0.5F;
  return config;
}

// A worker of the job with what it computes.
struct Member {
  Member(const JobConfig& config, const DataSplit& digits, const TrainOptions& options)
      : worker([&] {
          WorkerOptions joining;
          joining.job = config.job;
          return joining;
        }()),
        model(make_model("mlp", digits.train.features, digits.train.classes)),
        parameters(model->parameters()) {
    std::vector<VariableSpec> specs;
    for (const ParameterSpec& parameter : model->parameters()) {
      VariableSpec& spec = specs.emplace_back();
      spec.name = parameter.name;
      spec.shape.assign(parameter.shape.begin(), parameter.shape.end());
    }
    variables = worker.variables(specs, [&](std::size_t i, std::span<float> out) { model->initialize(i, 1, out); });
    engine = make_cpu_engine({worker, variables, *model, digits.train, options}, parameters);
  }

  void begin() {
    engine->pull();
    engine->compute({});
  }
  void end() {
    engine->push();
    worker.step();
    engine->begin_next();
  }
  double accuracy(const Dataset& test) {
    engine->pull();
    return model->evaluate(parameters.values(), test).accuracy;
  }

  Worker worker;
  std::unique_ptr<Model> model;
  ParameterArrays parameters;
  std::vector<Variable> variables;
  std::unique_ptr<Engine> engine;
};

}  // namespace

TEST_CASE("local steps: the outer momentum of docs/modes.md learns where each push comes as late as it can") {
  const DataSplit digits = load_data("digits", embedded_digits());
  TrainOptions options;
  options.push_every = 8;
  options.local_lr = 0.1F;
  const test::JobName name;
  const JobConfig config = test::with_name(outer_momentum(Mode::kAsync, 0.2F), name.text());
  const Server server(config);
  std::vector<std::unique_ptr<Member>> members;
  for (std::uint32_t rank = 0; rank < config.workers; ++rank)
    members.push_back(std::make_unique<Member>(config, digits, options));
  for (const auto& member : members) member->begin();
  for (int round = 0; round < 200; ++round)
    for (const auto& member : members) {  // two pushes have been applied since it pulled
      member->end();
      member->begin();
    }
  CHECK(members[0]->accuracy(digits.test) > 0.95);
}

TEST_CASE("local steps: in sync mode what is pushed is divided by how many are in a step") {
  const auto factor_of = [](JobConfig config, std::uint32_t workers) {
    const test::Job job(config);
    JobControl(job.config.job).change([&](LiveSettings& live) { live.workers = workers; });
    return pushed_factor(job.join(0));
  };
  JobConfig config{.workers = 4, .mode = Mode::kSync, .optimizer = {.rule = UpdateRule::kAdd}};
  CHECK(factor_of(config, 4) == 0.25F);
  config.quorum = 2;
  CHECK_THROWS_WITH_AS(factor_of(config, 4), doctest::Contains("optimizer sgd and lr 1"), Error);
  JobConfig elastic{.workers = 1, .max_workers = 4, .mode = Mode::kSync, .optimizer = {.rule = UpdateRule::kAdd}};
  elastic.elastic_min = 1, elastic.elastic_max = 4;
  CHECK(factor_of(elastic, 4) == 0.25F);
  config.quorum = 0, config.mode = Mode::kAsync;
  CHECK(factor_of(config, 4) == 1);
  config.optimizer.rule = UpdateRule::kMomentum;
  CHECK(factor_of(config, 4) == -1);
}

TEST_CASE("local steps: an outer momentum that overshoots is warned of, in modes whose pushes apply at once") {
  const auto warning = [](const JobConfig& config) { return warn_of_overshooting(config, *config.optimizer.lr); };
  for (const Mode mode : {Mode::kAsync, Mode::kSsp}) {
    const std::string text = warning(outer_momentum(mode, 1));
    CHECK(text.find("`lr` 1 and `momentum` 0.5") != std::string::npos);
    CHECK(text.find("use `mode` sync, or `lr` 0.33 at most") != std::string::npos);
    CHECK(warning(outer_momentum(mode, 0.3F)).empty());
  }
  CHECK(warning(outer_momentum(Mode::kSync, 1)).empty());
  JobConfig one = outer_momentum(Mode::kAsync, 1);
  one.workers = 1;
  CHECK(warning(one).empty());
  JobConfig plain = outer_momentum(Mode::kAsync, 1);
  plain.optimizer.rule = UpdateRule::kSgd;
  CHECK(warning(plain).empty());
}
