// Disturbances of a GPU worker's training: torn pulls, refused graphs, delays, failures, stops, changes.
#include "support/gpu_training.hpp"

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "ps_shm/job_control.hpp"
#include "support/processes.hpp"

using namespace ps_shm;
using test::Box;
using test::digits;
using test::FakeBox;
using test::job;
using test::kRounding;
using test::member;
using test::train_job;
using test::Trained;
using test::worst_difference;

TEST_CASE("gpu training: a step whose pull was torn is computed again") {
  for (const bool waits : {true, false}) {
    Box box({.stream_waits = waits});
    box.cuda.fail("begin_capture", 0, device::kNotSupported);
    JobConfig config = job(Mode::kAsync, 1, 40);
    const Trained expected = train_job(config, "mlp", {{}});
    config.job = test::unique_job_name();
    config.max_workers = 2;
    std::unique_ptr<Worker> other;
    std::optional<Variable> weights;
    int pulls = 0;
    // Pushes zeros to what is being copied: the version changes, the values do not; in the end the CPU copies.
    box.cuda.during_pull = [&](std::size_t piece) {
      if (piece != 1 || (pulls++ / 3) % 2 != 0) return;
      if (!other) other = std::make_unique<Worker>(member(config, 1));
      if (!weights) weights = other->variable("hid_w");
      for (int i = 0; i < 6; ++i) other->push(*weights, std::vector<float>(weights->element_count(), 0.0F));
    };
    train::TrainOptions options;
    options.gpu = box.place();
    std::vector<float> after;
    {
      const train::Dataset& data = digits().train;
      Server server(config);
      Worker worker(member(config, 0));
      const auto model = train::make_model("mlp", data.features, data.classes);
      train::TrainResult result = train::train(worker, *model, data, options);
      // Kernel by kernel, so that each step, computed once or again, is a call of its own.
      const std::size_t bounced = result.gpu->transfers.bounced_chunks;
      CHECK(bounced > 1);
      CHECK(box.cuda.count("softmax_cross_entropy") >= result.last.steps + bounced);
      for (std::size_t i = 0; i < expected.parameters.size(); ++i)
        for (std::size_t k = 0; k < expected.parameters[i].size(); ++k)
          if (std::abs(result.parameters[i][k] - expected.parameters[i][k]) > kRounding)
            after.push_back(result.parameters[i][k]);
      CHECK(after.empty());
      other.reset();
    }
  }
}

TEST_CASE("gpu training: a timed step does not block the CPU longer than the others") {
  Box box;
  std::size_t pushes = 0, waited_for = 0;
  // The next batch is requested while the gradient is being transferred, whether the step is timed or not.
  box.cuda.before_report = [&](std::size_t piece) {
    if (piece != 0) return;
    ++pushes;
    if (waited_for == 0 && !test::eventually([&] { return box.cuda.count("gather_rows") > pushes; })) ++waited_for;
  };
  train::TrainOptions options;
  options.gpu = box.place();
  options.gpu->stream_waits = false;
  JobConfig config = job(Mode::kAsync, 1, 20);
  const Trained trained = train_job(config, "softmax", {options});
  CHECK(trained.results[0].gpu->step.sampled == 1);
  CHECK(pushes >= 20);
  CHECK(waited_for == 0);
}

TEST_CASE("gpu training: if no graph can be created, it is reported once and kernels are launched one by one") {
  for (const char* call : {"begin_capture", "end_capture"}) {
    Box box;
    box.cuda.fail(call, 0, device::kNotSupported);
    train::TrainOptions options;
    options.gpu = box.place();
    std::vector<std::string> warnings;
    options.warn = [&](const std::string& line) { warnings.push_back(line); };
    const Trained trained = train_job(job(Mode::kAsync, 1, 60), "softmax", {options});
    CHECK(box.cuda.count("launch") == 0);
    CHECK(box.cuda.count("begin_capture") == 1);
    CHECK(trained.results[0].gpu->graph_operations == 0);
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0].find("kernel by kernel") != std::string::npos);
  }
}

TEST_CASE("gpu training: a straggler waits before its push, as often and as long as requested") {
  Box box;
  train::TrainOptions options;
  options.gpu = box.place();
  options.delay.seconds = 0.003;
  options.push_every = 2;
  JobConfig config = job(Mode::kAsync, 1, 20);
  config.optimizer.rule = UpdateRule::kAdd;
  CHECK(train_job(config, "softmax", {options}).results[0].phases.delay > 0.9 * 20 * 2 * 0.003);
  options.delay = {};
  options.delay.factor = 3;
  config.job = test::unique_job_name();
  const train::PhaseSeconds phases = train_job(config, "softmax", {options}).results[0].phases;
  CHECK(phases.delay > phases.pull + phases.gradient);
}

TEST_CASE("gpu training: a GPU that fails is an error that names the call, without hangs or leaks") {
  for (const char* call : {"allocate", "multiply", "gather_rows", "record", "launch", "wait_value"}) {
    CAPTURE(std::string(call));
    Box box;
    box.cuda.fail(call, call == std::string("allocate") ? 1 : 3, device::kInvalidValue);
    train::TrainOptions options;
    options.gpu = box.place();
    CHECK_THROWS_WITH_AS(train_job(job(Mode::kAsync, 1, 200), "mlp", {options}), doctest::Contains("the GPU cannot"),
                         Error);
  }
}

TEST_CASE("gpu training: a job that ends or is told to stop while the next step is enqueued leaves nothing behind") {
  Box box;
  train::TrainOptions options;
  options.gpu = box.place();
  int asked = 0;
  options.stop_requested = [&] { return ++asked > 30; };
  const Trained trained = train_job(job(Mode::kAsync, 1, 0), "mlp", {options});
  CHECK(trained.results[0].is_interrupted);
  CHECK(trained.results[0].last.steps > 0);
}

TEST_CASE("gpu training: a rate that is changed while the job runs applies from the GPU's next local step") {
  Box box;
  JobConfig config = job(Mode::kAsync, 1, 60);
  config.optimizer.rule = UpdateRule::kAdd;
  config.optimizer.learning_rate = 0.1F;
  train::TrainOptions options;
  options.push_every = 2;
  std::vector<Trained> trained;
  for (const bool has_gpu : {false, true}) {
    config.job = test::unique_job_name();
    if (has_gpu) options.gpu = box.place();
    int asked = 0;
    options.stop_requested = [&] {
      if (++asked == 20)  // once per step, before it
        JobControl(config.job).change([](LiveSettings& settings) { settings.learning_rate = 0.02F; });
      return false;
    };
    trained.push_back(train_job(config, "mlp", {options}));
  }
  CHECK(worst_difference(trained[0], trained[1]) < kRounding);
}
