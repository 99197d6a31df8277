// The age limit of modes async and ssp (`stale-limit`): which steps it drops, and that a dropped step changes nothing.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_control.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/table.hpp"
#include "ps_shm/worker.hpp"
#include "record/order.hpp"
#include "record/replayer.hpp"
#include "support/folder.hpp"
#include "support/job.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

// A job with a limit and its two workers. The first one's variable is that of the second one.
struct Two : Job {
  explicit Two(const JobConfig& settings, const VariableSpec& declared = vector_of(10))
      : Job(settings), spec(declared) {}

  // The second worker makes this many steps, each of which adds one.
  void others_step(int steps) {
    for (int i = 0; i < steps; ++i) {
      other.push(b, ones);
      other.step();
    }
  }
  void pull() { one.pull(a, out); }
  float value() const { return view().values("v")[0]; }
  WorkerInfo info(std::uint32_t rank = 0) const { return view().workers().at(rank); }

  VariableSpec spec;
  Worker one = join(0), other = join(1);
  Variable a = one.variable(spec, zero), b = other.variable(spec, zero);
  const std::vector<float> ones = std::vector<float>(10, 1.0F);
  std::vector<float> out = std::vector<float>(10);
};

}  // namespace

TEST_CASE("age limit: a step whose gradient is as old as the limit is dropped, a younger one is not") {
  Two job({.workers = 2, .stale_limit = 3});
  job.pull();
  job.others_step(2);
  job.one.push(job.a, job.ones);
  CHECK(job.one.step() == 3);
  CHECK(job.value() == 3);
  job.pull();
  job.others_step(3);
  job.one.push(job.a, job.ones);
  CHECK(job.one.step() == 6);  // it is not counted
  CHECK(job.value() == 6);
  CHECK(job.info().steps == 1);
  CHECK(job.info().dropped == 1);
  CHECK(job.info(1).dropped == 0);
  job.pull();
  job.one.push(job.a, job.ones);
  CHECK(job.one.step() == 7);  // after a new pull it gets through
}

TEST_CASE("age limit: own steps do not age a gradient, and without a pull the one before counts") {
  Two job({.workers = 2, .stale_limit = 2});
  job.one.push(job.a, job.ones);  // nothing was pulled
  job.others_step(5);
  CHECK(job.one.step() == 6);
  job.pull();
  for (int step = 0; step < 4; ++step) {
    job.one.push(job.a, job.ones);
    job.one.step();
  }
  CHECK(job.info().dropped == 0);
  job.others_step(1);
  job.one.push(job.a, job.ones);
  job.one.step();
  CHECK(job.info().dropped == 0);
  job.others_step(1);
  job.one.push(job.a, job.ones);
  job.one.step();
  CHECK(job.info().dropped == 1);
}

TEST_CASE("age limit: the first pull of a step counts, and a pull after its first push is that of the next step") {
  Two job({.workers = 2, .stale_limit = 2});
  job.pull();
  job.others_step(2);
  job.pull();
  job.one.push(job.a, job.ones);
  job.pull();
  job.one.step();
  CHECK(job.info().dropped == 1);
  job.others_step(1);
  job.one.push(job.a, job.ones);
  job.one.step();
  CHECK(job.info().dropped == 1);
  job.others_step(1);
  job.one.push(job.a, job.ones);
  job.one.step();
  CHECK(job.info().dropped == 2);
}

TEST_CASE(
    "age limit: the first push decides for all pushes of a step, also for scalars and rows; adds are never dropped") {
  for (const bool is_old : {true, false}) {
    Two job({.workers = 2, .stale_limit = 1, .layout = Layout::kInplace});
    const VariableSpec scalar{.name = "s", .shape = {1}, .rule = UpdateRule::kAdd};
    const VariableSpec rows{.name = "r", .shape = {4, 2}, .rule = UpdateRule::kAdd};
    const Variable s = job.one.variable(scalar, zero), r = job.one.variable(rows, zero);
    const std::array<std::uint32_t, 2> ids = {3, 1};
    const std::vector<float> four(4, 1.0F);
    std::vector<float> got(4);
    job.one.pull_rows(r, ids, got);
    if (is_old) job.others_step(1);
    job.one.push_rows(r, ids, four);
    if (!is_old) job.others_step(1);  // the step was decided before
    job.one.push(s, 1.0F);
    job.one.push(job.a, job.ones);
    job.one.add(job.a, job.ones);
    job.one.add_rows(r, ids, four);
    job.one.step();
    const float pushed = is_old ? 0 : 1;
    const JobView view(job.config.job);
    CHECK(view.values("v")[0] == 1 + pushed + 1);
    CHECK(view.values("s")[0] == pushed);
    CHECK(view.values("r")[2] == pushed + 1);
    CHECK(job.info().dropped == (is_old ? 1 : 0));
  }
}

TEST_CASE("age limit: a dropped push leaves no trace in optimizer state and moving averages") {
  for (const UpdateRule rule : {UpdateRule::kMomentum, UpdateRule::kAdam, UpdateRule::kFtrl}) {
    const auto run = [&](bool pushes) {
      Two job({.workers = 2, .stale_limit = 1, .optimizer = {.rule = rule, .ema = 0.9F}}, {.name = "v", .shape = {10}});
      job.others_step(2);
      job.pull();
      job.others_step(1);
      if (pushes) {
        job.one.push(job.a, std::vector<float>(10, 100.0F));
        job.one.step();
        CHECK(job.info().dropped == 1);
      }
      CHECK(JobView(job.config.job).variables()[0].updates == 3);
      job.others_step(2);
      std::vector<float> average(10);
      job.other.pull_average(job.b, average);
      return std::pair(JobView(job.config.job).values("v"), average);
    };
    CHECK(run(true) == run(false));
  }
}

TEST_CASE(
    "age limit: a push that copies back is the next step's pull, and copies the current values if it is dropped") {
  Two job({.workers = 2, .stale_limit = 1});
  std::array<Versions, 1> since;
  const auto push = [&] {
    job.one.push(std::array{job.a}, std::array{std::span<const float>(job.ones)}, std::array{std::span(job.out)},
                 since);
  };
  job.pull();
  push();
  job.one.step();
  CHECK(job.out == std::vector<float>(10, 1.0F));
  push();
  job.one.step();
  CHECK(job.info().dropped == 0);
  job.others_step(3);
  push();
  job.one.step();
  CHECK(job.info().dropped == 1);
  CHECK(job.out == std::vector<float>(10, 5.0F));
  push();
  job.one.step();
  CHECK(job.info().dropped == 1);
  CHECK(job.value() == 6);
}

TEST_CASE("age limit: the ssp clock of a dropped step advances") {
  Two job({.workers = 2, .mode = Mode::kSsp, .staleness = 2, .stale_limit = 1});
  job.pull();
  job.others_step(2);
  job.one.push(job.a, job.ones);
  job.one.step();
  CHECK(job.info().dropped == 1);
  CHECK(job.info().clock == 1);
  job.others_step(1);  // would wait if the clock were 0
  CHECK(job.info(1).clock == 3);
}

TEST_CASE("age limit: it can be set and cleared while the job runs, which is an event, and begins with the next step") {
  Two job({.workers = 2, .stale_limit = 0});
  job.pull();
  job.others_step(5);
  JobControl(job.config.job).change([](LiveSettings& live) { live.stale_limit = 1; });
  job.one.push(job.a, job.ones);
  job.one.step();
  CHECK(job.info().dropped == 0);
  job.pull();
  job.others_step(1);
  job.one.push(job.a, job.ones);
  job.one.step();
  CHECK(job.info().dropped == 1);
  JobControl(job.config.job).change([](LiveSettings& live) { live.stale_limit = 0; });
  job.pull();
  job.others_step(1);
  job.one.push(job.a, job.ones);  // still under the limit
  job.one.step();
  CHECK(job.info().dropped == 2);
  job.pull();
  job.others_step(1);
  job.one.push(job.a, job.ones);
  job.one.step();
  CHECK(job.info().dropped == 2);
  std::vector<std::string> texts;
  for (const Event& event : JobView(job.config.job).events())
    if (event.kind == "set") texts.push_back(event.text);
  CHECK(texts == std::vector<std::string>{"stale-limit: 0 -> 1", "stale-limit: 1 -> 0"});
}

TEST_CASE("age limit: mode sync has none") {
  JobConfig config = config_of({.workers = 2, .mode = Mode::kSync, .stale_limit = 4});
  CHECK_THROWS_WITH_AS(check(config), doctest::Contains("`stale-limit` needs `mode` async or ssp"), Error);
  config.stale_limit = 0;
  Server server(config);
  CHECK_THROWS_AS(JobControl(config.job).change([](LiveSettings& live) { live.stale_limit = 1; }), Error);
}

TEST_CASE("age limit: a successor in a rank begins without a pull") {
  Two job({.workers = 2, .stale_limit = 1});
  job.pull();
  job.others_step(2);
  job.one.leave();
  Worker successor(options(job.config, 0));
  const Variable a = successor.variable(vector_of(10), zero);
  successor.push(a, job.ones);
  CHECK(successor.step() == 3);
}

TEST_CASE("age limit: dropped steps are recorded, and a replay drops the same ones whatever the limit is") {
  const test::Folder folder;
  JobConfig config = config_of({.workers = 2, .stale_limit = 1});
  std::vector<float> values[2];
  const auto run = [&](bool is_replayed, float gradient) {
    config.job = test::unique_job_name();
    Server server(config);
    const record::ReplayCoordinator coordinator(is_replayed ? record::Records(folder.path()).order().chunks() : 1);
    const auto join = [&](std::uint32_t rank) {
      WorkerOptions given = options(config, rank);
      (is_replayed ? given.replay : given.record) = folder.path();
      if (is_replayed) given.replay_coordinator = coordinator.path();
      return Worker(given);
    };
    Worker one = join(0), other = join(1);
    const Variable a = one.variable(vector_of(10), zero), b = other.variable(vector_of(10), zero);
    std::vector<float> out(10);
    const std::vector<float> ones(10, 1.0F);
    const auto other_step = [&] {
      other.push(b, ones);
      other.step();
    };
    one.pull(a, out);
    other_step();
    one.push(a, std::vector<float>(10, gradient));
    one.push(a, ones);
    one.step();
    one.pull(a, out);
    one.push(a, ones);
    one.step();
    CHECK(JobView(config.job).workers()[0].dropped == 1);
    CHECK(JobView(config.job).workers()[0].steps == 1);
    values[is_replayed] = JobView(config.job).values("v");
    other.leave();
    one.leave();
  };
  run(false, 100);
  config.stale_limit = 0;
  run(true, 100);
  CHECK(values[0] == std::vector<float>(10, 2.0F));
  CHECK(values[1] == values[0]);
  CHECK_THROWS_WITH_AS(run(true, 99), doctest::Contains("the pushed values differ from the recorded ones"), Error);
}

TEST_CASE("age limit: a dropped step pushes nothing to a table by key") {
  Two job({.workers = 2, .stale_limit = 2});
  const TableSpec spec{.name = "items", .max_rows = 100};
  Table table = job.one.table(spec);
  const std::vector<std::uint64_t> keys = {1, 2};
  std::vector<float> rows(2);
  table.pull(keys, rows);  // a pull, as one of a variable
  job.others_step(1);
  CHECK(table.push(keys, rows).updated == 2);
  CHECK(job.one.step() == 2);
  table.pull(keys, rows);
  job.others_step(2);
  CHECK(table.push(keys, rows).updated == 0);
  CHECK(job.one.step() == 4);  // it is not counted
  CHECK(job.info().dropped == 1);
  std::vector<float> now(2);
  table.pull(keys, now);
  CHECK(now == rows);
}
