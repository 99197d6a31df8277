// Training with GPU workers, on CUDA's tables as they execute on this machine: whole jobs in one process.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../../tools/embedded_digits.hpp"
#include "ps/errors.hpp"
#include "ps/job_control.hpp"
#include "ps/job_view.hpp"
#include "ps/server.hpp"
#include "support/fake_cuda.hpp"
#include "support/test_job.hpp"
#include "train/count_model.hpp"
#include "train/trainer.hpp"

using namespace ps;
using test::FakeBox;
using test::FakeCuda;

namespace {

const train::DataSplit& digits() {
  static const train::DataSplit data = train::load_data("digits", train::embedded_digits());
  return data;
}

struct Box {
  FakeCuda cuda;
  test::FakeKernels kernels{cuda};
  device::GpuInfo gpu;

  explicit Box(const FakeBox& kind = {}) : cuda(kind), gpu(device::probe_gpus(cuda).gpus.at(0)) {}
  ~Box() {
    CHECK(cuda.faults().empty());
    CHECK(cuda.live_allocations() == 0);
  }
  train::GpuPlace place() { return {.gpu = gpu, .cuda = &cuda, .kernels = &kernels}; }
};

JobConfig job(Mode mode, std::uint32_t workers, std::uint64_t steps) {
  JobConfig config;
  config.job = test::unique_job_name();
  config.workers = workers;
  config.mode = mode;
  config.steps = steps;
  if (mode == Mode::kSsp) config.staleness = 2;
  config.step_timeout_seconds = 60;
  return config;
}

WorkerOptions member(const JobConfig& config, std::uint32_t rank) {
  WorkerOptions options;
  options.job = config.job;
  options.rank = rank;
  options.notice = [](const std::string&) {};
  return options;
}

struct Trained {
  std::vector<std::vector<float>> parameters;  // as they are at the end
  double accuracy = 0.0;
  std::uint64_t digest = 0;
  std::vector<train::TrainResult> results;  // by rank
};

// A job whose worker of rank r trains with options[r].
Trained train_job(const JobConfig& config, const char* model_name, const std::vector<train::TrainOptions>& options) {
  const train::Dataset& data = digits().train;
  Server server(config);
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::uint32_t rank = 0; rank < options.size(); ++rank)
    workers.push_back(std::make_unique<Worker>(member(config, rank)));
  Trained trained;
  const auto evaluated = train::make_model(model_name, data.features, data.classes);
  std::vector<std::optional<train::TrainResult>> results(options.size());
  std::vector<std::string> errors(options.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < options.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        const auto model = train::make_model(model_name, data.features, data.classes);
        results[rank].emplace(train::train(*workers[rank], *model, data, options[rank]));
      } catch (const std::exception& error) {
        errors[rank] = error.what();
        workers[rank]->leave();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors)
    if (!error.empty()) throw Error(error);
  std::vector<const float*> pointers;
  for (const train::ParameterSpec& spec : evaluated->parameters()) {
    std::vector<float>& values = trained.parameters.emplace_back(spec.count());
    workers[0]->pull(workers[0]->variable(spec.name), values);
    pointers.push_back(values.data());
  }
  trained.accuracy = evaluated->evaluate(pointers, digits().test).accuracy;
  trained.digest = JobView(config.job).digest();
  for (auto& result : results) trained.results.push_back(std::move(*result));
  return trained;
}

// Two workers with a GPU, one without.
std::vector<train::TrainOptions> mixed(Box& box, train::TrainOptions options, Wire wire = Wire::kFloat32) {
  std::vector<train::TrainOptions> all(3, options);
  for (int rank : {0, 1}) {
    all[std::size_t(rank)].gpu = box.place();
    all[std::size_t(rank)].gpu->wire = wire;
  }
  return all;
}

double worst_difference(const Trained& a, const Trained& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.parameters.size(); ++i)
    for (std::size_t k = 0; k < a.parameters[i].size(); ++k)
      worst = std::max(worst, std::abs(double(a.parameters[i][k]) - double(b.parameters[i][k])));
  return worst;
}

// How far parameters that began the same are apart after some steps of one worker each; both sum in float32.
constexpr double kRounding = 2e-5;

void check_same_as_processor(const JobConfig& config, const train::TrainOptions& options, const FakeBox& kind = {},
                             double resident_share = 0.5) {
  Box box(kind);
  const Trained expected = train_job(config, "mlp", {options});
  train::TrainOptions with_gpu = options;
  with_gpu.gpu = box.place();
  with_gpu.gpu->resident_share = resident_share;
  JobConfig again = config;
  again.job = test::unique_job_name();
  const Trained found = train_job(again, "mlp", {with_gpu});
  CHECK(worst_difference(expected, found) < kRounding);
  CHECK(found.results[0].last.loss == doctest::Approx(expected.results[0].last.loss).epsilon(1e-3));
  CHECK(found.results[0].last.steps == expected.results[0].last.steps);
  CHECK(found.results[0].last.examples == expected.results[0].last.examples);
  REQUIRE(found.results[0].gpu);
  CHECK(found.results[0].gpu->is_resident == (resident_share > 0));
}

}  // namespace

TEST_CASE("gpu training: step by step it does what a processor does") {
  for (const Mode mode : {Mode::kAsync, Mode::kSync}) {
    CAPTURE(std::string(to_string(mode)));
    for (const FakeBox& kind : {FakeBox{}, FakeBox{.stream_waits = false}, FakeBox{.host_register = false}})
      check_same_as_processor(job(mode, 1, 40), {}, kind);
    check_same_as_processor(job(mode, 1, 40), {}, {}, 0.0);  // the training set stays on the host
    JobConfig inplace = job(mode, 1, 40);
    inplace.layout = Layout::kInplace;
    if (mode == Mode::kAsync) check_same_as_processor(inplace, {});
    JobConfig adam = job(mode, 1, 40);
    adam.optimizer.rule = UpdateRule::kMomentum;
    adam.optimizer.clip_norm = 0.5F;
    adam.optimizer.schedule = Schedule::parse("cosine:40");
    check_same_as_processor(adam, {});
  }
}

TEST_CASE("gpu training: local steps are those of the processor, whatever the rule, the schedule and the rate") {
  train::TrainOptions options;
  options.push_every = 4;
  for (const Mode mode : {Mode::kAsync, Mode::kSync})
    for (const UpdateRule rule : {UpdateRule::kAdd, UpdateRule::kMomentum})
      for (const char* schedule : {"constant", "exp:0.5:20"}) {
        CAPTURE(std::string(to_string(mode)));
        CAPTURE(std::string(to_string(rule)));
        CAPTURE(std::string(schedule));
        JobConfig config = job(mode, 1, 30);
        config.optimizer.rule = rule;
        config.optimizer.learning_rate = rule == UpdateRule::kAdd ? 0.2F : 0.1F;
        config.optimizer.l2 = 1e-3F;
        config.optimizer.weight_decay = 1e-3F;
        config.optimizer.clip_value = 0.05F;
        config.optimizer.schedule = Schedule::parse(schedule);
        check_same_as_processor(config, options);
        check_same_as_processor(config, options, {}, 0.0);
      }
  options.push_every = 1;  // differences of single steps
  options.local_learning_rate = 0.3F;
  JobConfig config = job(Mode::kAsync, 1, 30);
  config.optimizer.rule = UpdateRule::kAdd;
  check_same_as_processor(config, options);
}

TEST_CASE("gpu training: a step whose pull was torn is computed again") {
  for (const bool waits : {true, false}) {
    Box box({.stream_waits = waits});
    JobConfig config = job(Mode::kAsync, 1, 40);
    const Trained expected = train_job(config, "mlp", {{}});
    config.job = test::unique_job_name();
    config.max_workers = 2;
    std::unique_ptr<Worker> other;
    std::optional<Variable> weights;
    int pulls = 0;
    // Somebody pushes zeros to what is being copied: another version, the same values; in the end the processor copies.
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
      CHECK(result.gpu->transfers.bounced_chunks > 0);
      for (std::size_t i = 0; i < expected.parameters.size(); ++i)
        for (std::size_t k = 0; k < expected.parameters[i].size(); ++k)
          if (std::abs(result.parameters[i][k] - expected.parameters[i][k]) > kRounding)
            after.push_back(result.parameters[i][k]);
      CHECK(after.empty());
      other.reset();
    }
  }
}

TEST_CASE("gpu training: workers with and without GPUs train together, in every mode and layout") {
  struct Case {
    Mode mode;
    Layout layout;
    const char* model;
    std::uint64_t push_every;
    Wire wire;
  };
  const Case cases[] = {{Mode::kAsync, Layout::kVersioned, "mlp", 1, Wire::kFloat32},
                        {Mode::kAsync, Layout::kInplace, "softmax", 1, Wire::kFloat32},
                        {Mode::kAsync, Layout::kVersioned, "mlp", 4, Wire::kFloat32},
                        {Mode::kSsp, Layout::kVersioned, "softmax", 1, Wire::kBfloat16},
                        {Mode::kSsp, Layout::kInplace, "mlp", 1, Wire::kFloat32},
                        {Mode::kSync, Layout::kVersioned, "mlp", 1, Wire::kBfloat16},
                        {Mode::kSync, Layout::kVersioned, "softmax", 4, Wire::kFloat32}};
  for (const Case& one : cases) {
    CAPTURE(std::string(to_string(one.mode)));
    CAPTURE(std::string(to_string(one.layout)));
    CAPTURE(std::string(one.model));
    CAPTURE(one.push_every);
    Box box;
    JobConfig config = job(one.mode, 3, one.mode == Mode::kSync ? 200 : 600);
    config.layout = one.layout;
    if (one.push_every > 1) config.optimizer.rule = UpdateRule::kAdd;
    train::TrainOptions options;
    options.push_every = one.push_every;
    const Trained with = train_job(config, one.model, mixed(box, options, one.wire));
    config.job = test::unique_job_name();
    const Trained without = train_job(config, one.model, std::vector<train::TrainOptions>(3, options));
    CHECK(without.accuracy > 0.85);
    CHECK(with.accuracy > without.accuracy - 0.03);
    CHECK_FALSE(with.results[2].gpu);
    for (std::size_t rank : {0U, 1U}) {
      REQUIRE(with.results[rank].gpu);
      const train::GpuReport& report = *with.results[rank].gpu;
      CHECK(report.transfers.pushes == with.results[rank].last.steps);
      CHECK(report.transfers.pulls >= report.transfers.pushes);
      if (with.results[rank].last.steps < 20) continue;  // the others were faster
      CHECK(report.is_captured);
      CHECK(report.step.sampled > 0);
      CHECK(report.step.compute > 0);
      CHECK(report.step.idle_share() > 0);
      CHECK(report.step.idle_share() < 1);
    }
    CHECK(box.cuda.count("launch") > 0);
  }
}

// With the same kernels: another GPU, or a processor in a GPU's place, rounds differently.
TEST_CASE("gpu training: in sync mode two runs give the same bits, GPUs or not, whatever the wire") {
  for (const Wire wire : {Wire::kFloat32, Wire::kBfloat16}) {
    Box box;
    std::vector<std::uint64_t> digests;
    for (int run = 0; run < 2; ++run)
      digests.push_back(train_job(job(Mode::kSync, 3, 60), "mlp", mixed(box, {}, wire)).digest);
    CHECK(digests[0] == digests[1]);
  }
}

TEST_CASE("gpu training: no update of the model count is lost") {
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace})
    for (const bool native : {false, true}) {
      CAPTURE(std::string(to_string(layout)));
      CAPTURE(native);
      Box box({.native_atomics = native});
      JobConfig config = job(Mode::kAsync, 3, 0);
      config.layout = layout;
      Server server(config);
      std::vector<std::unique_ptr<Worker>> workers;
      std::vector<train::CountResult> results(3);
      std::vector<std::thread> threads;
      for (std::uint32_t rank = 0; rank < 3; ++rank) workers.push_back(std::make_unique<Worker>(member(config, rank)));
      for (std::uint32_t rank = 0; rank < 3; ++rank)
        threads.emplace_back([&, rank] {
          train::CountOptions options;
          options.size = 10007;
          options.steps = 100;
          if (rank < 2) options.gpu = box.place();
          results[rank] = train::count_up(*workers[rank], options);
        });
      for (std::thread& thread : threads) thread.join();
      std::vector<float> values(10007);
      workers[0]->pull(workers[0]->variable(train::kCountVariable), values);
      CHECK(values == std::vector<float>(10007, 300.0F));
      CHECK(results[0].gpu->transfers.pushes == 100);
      CHECK_FALSE(results[2].gpu);
    }
}

TEST_CASE("gpu training: where no graph can be made, it says so once and goes on kernel by kernel") {
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
    CHECK_FALSE(trained.results[0].gpu->is_captured);
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0].find("kernel by kernel") != std::string::npos);
  }
}

TEST_CASE("gpu training: a straggler waits before its push, as often and as long as it was asked for") {
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

TEST_CASE("gpu training: a GPU that fails is an error that names the call, and nothing hangs or stays") {
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

TEST_CASE("gpu training: a rate that is changed while the job runs holds for the GPU's next local step") {
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
      if (++asked == 20) {  // once a step, before it
        JobControl control(config.job);
        LiveSettings settings = control.current();
        settings.learning_rate = 0.02F;
        control.change(settings);
      }
      return false;
    };
    trained.push_back(train_job(config, "mlp", {options}));
  }
  CHECK(worst_difference(trained[0], trained[1]) < kRounding);
}
