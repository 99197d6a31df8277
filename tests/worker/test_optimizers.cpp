// Limits on the norm of gradients, averages, and factors and settings of optimizers that change while a job runs. What
// the rules make of values: test_values.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_control.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "support/job.hpp"
#include "support/rule_reference.hpp"
#include "update/rules.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

const auto kOptimizers =
    test::rules_where([](const update::Traits& traits) { return traits.works_versioned && !traits.is_sum; });

}  // namespace

TEST_CASE("optimizers: no average is kept without the job's setting, nor for a variable with rule add") {
  JobConfig config = config_of();
  Server server(config);
  Worker worker(options(config));
  const Variable plain = worker.variable(vector_of(4, UpdateRule::kSgd), zero);
  std::vector<float> out(4);
  CHECK_THROWS_WITH_AS(worker.pull_average(plain, out), doctest::Contains("average"), Error);
  CHECK_THROWS_WITH_AS(JobView(config.job).averages("v"), doctest::Contains("average"), Error);
  JobConfig averaging = config_of({.optimizer = {.ema = 0.9F}});
  Server other(averaging);
  Worker second(options(averaging));
  const Variable added = second.variable(vector_of(4, UpdateRule::kAdd), zero);
  CHECK_THROWS_AS(second.pull_average(added, out), Error);
  CHECK_THROWS_AS(JobView(averaging.job).averages("v"), Error);
}

TEST_CASE("optimizers: the norm is over all variables of one push, except those with rule add") {
  for (const Reduce reduce : {Reduce::kOrdered, Reduce::kAtomic})
    for (const Mode mode : {Mode::kAsync, Mode::kSync}) {
      if (mode == Mode::kAsync && reduce == Reduce::kAtomic) continue;
      Job job({.mode = mode, .reduce = reduce, .optimizer = {.lr = 1.0F, .clip_norm = 10}});
      Worker worker = job.join();
      const VariableSpec specs[] = {{.name = "a", .shape = {4}, .rule = UpdateRule::kSgd},
                                    {.name = "b", .shape = {1}, .rule = UpdateRule::kSgd},
                                    {.name = "n", .shape = {1}, .rule = UpdateRule::kAdd}};
      const std::vector<Variable> variables =
          worker.variables(specs, [](std::size_t, std::span<float> out) { zero(out); });
      const std::vector<float> a(4, 20.0F), b(1, 30.0F), n(1, 1000.0F);  // norm sqrt(1600 + 900) = 50
      const std::span<const float> gradients[] = {a, b, n};
      worker.push(variables, gradients);
      worker.step();
      const JobView view = job.view();
      CHECK(view.values("a") == std::vector<float>(4, -20.0F * 0.2F));
      CHECK(view.values("b") == std::vector<float>(1, -30.0F * 0.2F));
      CHECK(view.values("n") == std::vector<float>(1, 1000.0F));
    }
}

TEST_CASE("optimizers: ordered sync clips over all pushes of a step, as their sum") {
  Job job({.mode = Mode::kSync, .optimizer = {.lr = 1.0F, .clip_norm = 10}});
  Worker worker = job.join();
  const Variable a = worker.variable({.name = "a", .shape = {4}, .rule = UpdateRule::kSgd}, zero);
  const Variable b = worker.variable({.name = "b", .shape = {1}, .rule = UpdateRule::kSgd}, zero);
  worker.push(a, std::vector<float>(4, 5.0F));
  worker.push(b, std::vector<float>(1, 30.0F));
  worker.push(a, std::vector<float>(4, 15.0F));
  worker.step();
  CHECK(job.view().values("a") == std::vector<float>(4, -20.0F * 0.2F));
  CHECK(job.view().values("b") == std::vector<float>(1, -30.0F * 0.2F));
}

TEST_CASE("optimizers: a push whose numbers of gradients and variables differ is refused and pushes nothing") {
  Job job;
  Worker worker = job.join();
  const Variable variables[] = {worker.variable(vector_of(4), zero)};
  const std::vector<float> ones(4, 1.0F), five(5, 1.0F);
  const std::span<const float> two[] = {ones, ones}, wrong[] = {five};
  CHECK_THROWS_AS(worker.push(variables, two), Error);
  CHECK_THROWS_AS(worker.push(variables, wrong), Error);
  CHECK(job.view().values("v") == std::vector<float>(4, 0.0F));
}

TEST_CASE("optimizers: staleness scaling divides the rate by the measured staleness plus one") {
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace}) {
    Job job({.workers = 2, .layout = layout, .optimizer = {.lr = 1.0F, .lr_staleness = true}});
    Worker first = job.join(), second = job.join();
    const Variable a = first.variable(vector_of(4, UpdateRule::kSgd), zero);
    const Variable b = second.variable(vector_of(4, UpdateRule::kSgd), zero);
    const std::vector<float> nothing(4, 0.0F), one(4, 1.0F);
    std::vector<float> out(4);
    first.push(a, one);  // nothing pulled: the rate is unchanged
    first.pull(a, out);
    CHECK(out[0] == -1.0F);
    for (int i = 0; i < 3; ++i) second.push(b, nothing);
    first.push(a, one);
    CHECK(job.view().values("v")[3] == -1.25F);
    first.push(a, one);  // one's own push does not count as staleness
    CHECK(job.view().values("v")[3] == -1.5F);
    CHECK(first.staleness().max == 3);
    first.pull(a, out);
    first.push(a, one);
    CHECK(job.view().values("v")[3] == -2.5F);
  }
}

TEST_CASE("optimizers: in-place variables support every rule, but no average") {
  for (const UpdateRule rule : kOptimizers) {
    CAPTURE(std::string(to_string(rule)));
    JobConfig job = config_of({.layout = Layout::kInplace, .optimizer = {.rule = rule}});
    CHECK_NOTHROW(check(job));
    job.optimizer.ema = 0.5F;
    CHECK_THROWS_AS(check(job), Error);
  }
  JobConfig averaging = config_of({.optimizer = {.ema = 0.5F}});
  Server other(averaging);
  Worker second(options(averaging));
  VariableSpec spec{.name = "v", .shape = {4}, .rule = UpdateRule::kSgd, .layout = Layout::kInplace};
  CHECK_THROWS_AS(second.variable(spec, zero), Error);
}

TEST_CASE("live: a changed learning rate and clipping apply from the next step on") {
  for (const Mode mode : {Mode::kAsync, Mode::kSync}) {
    Job job({.mode = mode, .optimizer = {.lr = 1.0F}});
    Worker worker = job.join();
    const Variable variable = worker.variable(vector_of(1, UpdateRule::kSgd), zero);
    const float four = 4.0F;
    worker.push(variable, {&four, 1});
    worker.step();
    JobControl(job.name.text()).change([](LiveSettings& settings) {
      settings.lr = 0.5F;
      settings.clip_norm = 1;
    });
    worker.step();
    worker.push(variable, {&four, 1});
    worker.step();
    CHECK(job.view().values("v")[0] == -4.5F);
  }
}

TEST_CASE("optimizers: factors that a worker sets are those of all workers' next pushes, in parts and in place, too") {
  for (const Mode mode : {Mode::kAsync, Mode::kSync})
    for (const Layout layout : {Layout::kVersioned, Layout::kInplace}) {
      if (mode == Mode::kSync && layout == Layout::kInplace) continue;  // there are none
      CAPTURE(std::string(to_string(mode)));
      CAPTURE(std::string(to_string(layout)));
      Job job({.workers = 2,
               .mode = mode,
               .layout = layout,
               .optimizer = {.lr = 0.5F, .l2 = 0.25F},
               .ps_tasks = 2,
               .placement = Placement::kPartition});
      Worker first = job.join(), second = job.join();
      const VariableSpec spec{.name = "v", .shape = {4096}, .regularize = 0, .lr_scale = 1};
      Variable of_first = first.variable(spec, [](std::span<float> out) { std::fill(out.begin(), out.end(), 2.0F); });
      Variable of_second = second.variable(spec, zero);
      REQUIRE(job.view().variables()[0].parts.size() > 1);
      const std::vector<float> ones(4096, 1.0F);
      // One push by each in async mode; their mean in sync mode, which is the same gradient.
      const auto step = [&] {
        std::jthread other([&] { second.push(of_second, ones), second.step(); });
        if (mode == Mode::kSync) first.push(of_first, ones);
        first.step();
      };
      const auto value = [&] { return job.view().values("v"); };
      step();
      CHECK(value() == std::vector<float>(4096, 1.5F));  // 2 - .5 * 1
      first.set_factors(of_first, 0.25F, 2);
      step();
      CHECK(value() == std::vector<float>(4096, 1.5F - 0.125F * (1 + 0.5F * 1.5F)));
      CHECK(job.view().variables()[0].lr_scale == 0.25F);
      CHECK(job.view().variables()[0].regularize == 2.0F);
      CHECK((of_second.lr_scale() == 0.25F && of_second.regularize() == 2.0F));
      // A later worker declares the variable as the others have.
      of_second = second.variable(spec, zero);
      first.set_factors(of_first, 0, 0);
      const std::vector<float> before = value();
      step();
      CHECK(value() == before);
    }
}

TEST_CASE("optimizers: factors that no update can use are refused, and the old ones remain") {
  Job job;
  Worker worker = job.join();
  const Variable v = worker.variable({.name = "v", .shape = {4}, .lr_scale = 2}, zero);
  const Variable sum = worker.variable({.name = "sum", .shape = {4}, .rule = UpdateRule::kAdd}, zero);
  const Variable ftrl = worker.variable({.name = "ftrl", .shape = {4}, .rule = UpdateRule::kFtrl}, zero);
  for (const float bad : {-1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    CHECK_THROWS_WITH_AS(worker.set_factors(v, bad, 1), doctest::Contains("must be at least 0"), Error);
    CHECK_THROWS_WITH_AS(worker.set_factors(v, 1, bad), doctest::Contains("must be at least 0"), Error);
  }
  CHECK_THROWS_WITH_AS(worker.set_factors(sum, 1, 1), doctest::Contains("whose factors are fixed"), Error);
  CHECK_THROWS_WITH_AS(worker.set_factors(ftrl, 1, 1), doctest::Contains("whose factors are fixed"), Error);
  CHECK(job.view().variables()[0].lr_scale == 2.0F);
}

TEST_CASE("optimizers: a factor of a variable's settings that is no non-negative number is refused") {
  JobConfig config = config_of();
  Server server(config);
  Worker worker(options(config));
  for (const float factor : {-1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const VariableSpec rate{.name = "v", .shape = {4}, .lr_scale = factor};
    const VariableSpec decay{.name = "v", .shape = {4}, .regularize = factor};
    for (const VariableSpec& spec : {rate, decay})
      CHECK_THROWS_WITH_AS(worker.variable(spec, zero), doctest::Contains("must be at least 0"), Error);
  }
  config.job = test::unique_job_name();
  Server other(config);
  Worker second(options(config));
  const VariableSpec unmoved{.name = "v", .shape = {4}, .rule = UpdateRule::kFtrl, .lr_scale = 0};
  CHECK_THROWS_WITH_AS(second.variable(unmoved, zero), doctest::Contains("because ftrl divides by the rate"), Error);
}
