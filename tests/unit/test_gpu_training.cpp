// Training with GPU workers, on CUDA's tables as they execute on this machine.
#include "support/gpu_training.hpp"

#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "train/count_model.hpp"

using namespace ps;
using test::Box;
using test::check_same_as_processor;
using test::FakeBox;
using test::job;
using test::member;
using test::mixed;
using test::train_job;
using test::Trained;

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
