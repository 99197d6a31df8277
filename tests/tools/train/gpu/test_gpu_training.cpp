// Training with GPU workers, on CUDA tables that execute on this machine.
#include "support/gpu_training.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "support/folder.hpp"
#include "support/processes.hpp"
#include "train/gpu/choose_gpu.hpp"
#include "train/gpu/python_libraries.hpp"
#include "train/log/span_log.hpp"
#include "train/log/train_log.hpp"
#include "train/loop/count_model.hpp"

using namespace ps_shm;
using test::Box;
using test::check_same_as_processor;
using test::FakeBox;
using test::job;
using test::options;
using test::mixed;
using test::train_job;
using test::Trained;

TEST_CASE("gpu training: cuBLAS is found in the packages of a Python on PATH, and of the user") {
  const test::Folder folder;
  const std::string of_venv = folder.write("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libx.so.13", "");
  const std::string of_user = folder.write(".local/lib/python3.10/site-packages/nvidia/cublas/lib/libx.so.13", "");
  folder.write("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libx.so.12", "");
  test::Child child([&] {
    setenv("PATH", ("/usr/games:" + folder.path("venv/bin")).c_str(), 1);
    setenv("HOME", folder.path().c_str(), 1);
    return train::libraries_of_python_packages("libx.so.13") == std::vector<std::string>{of_venv, of_user} ? 0 : 1;
  });
  CHECK(child.join() == 0);
}

TEST_CASE("gpu training: how the workers of a process wait is set once for each device, unless it has failed") {
  Box fake({.devices = 2});
  const auto times = [&] { return fake.cuda.count("yield_in_waits"); };
  fake.cuda.fail("yield_in_waits", 0, device::kInvalidDevice);
  CHECK_THROWS_AS(train::yield_in_waits_once(fake.cuda, 0), Error);
  CHECK(times() == 1);
  for (int worker = 0; worker < 3; ++worker) train::yield_in_waits_once(fake.cuda, 0);
  CHECK(times() == 2);
  train::yield_in_waits_once(fake.cuda, 1);
  CHECK(times() == 3);
}

TEST_CASE("gpu training: step by step it does the same as a CPU") {
  for (const Mode mode : {Mode::kAsync, Mode::kSync}) {
    CAPTURE(std::string(to_string(mode)));
    for (const FakeBox& kind : {FakeBox{}, FakeBox{.stream_waits = false}, FakeBox{.host_register = false}})
      check_same_as_processor(job(mode, 1, 16), {}, kind);
    check_same_as_processor(job(mode, 1, 40), {}, {}, 0.0);  // the training set stays on the host
    JobConfig inplace = job(mode, 1, 16);
    inplace.layout = Layout::kInplace;
    if (mode == Mode::kAsync) check_same_as_processor(inplace, {});
    JobConfig momentum = job(mode, 1, 16);
    momentum.optimizer.rule = UpdateRule::kMomentum;
    momentum.optimizer.clip_norm = 0.5F;
    momentum.optimizer.schedule = Schedule::parse("cosine:16");
    check_same_as_processor(momentum, {});
  }
}

TEST_CASE("gpu training: local steps equal the CPU's, whatever the rule, the schedule and the rate") {
  train::TrainOptions options;
  options.push_every = 4;
  for (const Mode mode : {Mode::kAsync, Mode::kSync})
    for (const UpdateRule rule : {UpdateRule::kAdd, UpdateRule::kMomentum})
      for (const char* schedule : {"constant", "exp:0.5:8"}) {
        CAPTURE(std::string(to_string(mode)));
        CAPTURE(std::string(to_string(rule)));
        CAPTURE(std::string(schedule));
        JobConfig config = job(mode, 1, 12);
        config.optimizer.rule = rule;
        config.optimizer.lr = rule == UpdateRule::kAdd ? 0.2F : 0.1F;
        config.optimizer.l2 = 1e-3F;
        config.optimizer.weight_decay = 1e-3F;
        config.optimizer.clip_value = 0.05F;
        config.optimizer.schedule = Schedule::parse(schedule);
        check_same_as_processor(config, options);
        check_same_as_processor(config, options, {}, 0.0);
      }
  options.push_every = 1;  // differences of single steps
  options.local_lr = 0.3F;
  JobConfig config = job(Mode::kAsync, 1, 12);
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
                        {Mode::kSsp, Layout::kVersioned, "softmax", 1, Wire::kBFloat16},
                        {Mode::kSsp, Layout::kInplace, "mlp", 1, Wire::kFloat32},
                        {Mode::kSync, Layout::kVersioned, "mlp", 1, Wire::kBFloat16},
                        {Mode::kSync, Layout::kVersioned, "softmax", 4, Wire::kFloat32}};
  for (const Case& one : cases) {
    CAPTURE(std::string(to_string(one.mode)));
    CAPTURE(std::string(to_string(one.layout)));
    CAPTURE(std::string(one.model));
    CAPTURE(one.push_every);
    std::array<Box, 2> boxes;
    JobConfig config = job(one.mode, 3, one.mode == Mode::kSync ? 100 : 300);
    config.layout = one.layout;
    if (one.push_every > 1) config.optimizer.rule = UpdateRule::kAdd;
    train::TrainOptions options;
    options.push_every = one.push_every;
    const Trained with = train_job(config, one.model, mixed(boxes, options, one.wire));
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
      CHECK(report.graph_operations > 0);
      CHECK(report.step.sampled > 0);
      CHECK(report.step.compute > 0);
      CHECK(report.step.idle_share() > 0);
      CHECK(report.step.idle_share() < 1);
      CHECK(boxes[rank].cuda.count("launch") > 0);
    }
  }
}

TEST_CASE("gpu training: a model of more than 2 MiB trains with gradients of bfloat16, with and without registration") {
  for (const bool can_register : {true, false}) {
    CAPTURE(can_register);
    Box box({.host_register = can_register});
    std::vector<train::TrainOptions> options(2);  // one worker with a GPU, one without
    options[0].gpu = box.place();
    options[0].gpu->wire = Wire::kBFloat16;
    const JobConfig config = can_register ? job(Mode::kSync, 2, 120) : job(Mode::kAsync, 2, 240);
    const Trained found = train_job(config, "mlp", options, test::wide_digits());
    CHECK(found.accuracy > 0.85);
    REQUIRE(found.results[0].gpu);
    const train::GpuReport& report = *found.results[0].gpu;
    CHECK(report.transfers.strategy.find("pulls through the host") == (can_register ? std::string::npos : 0));
    CHECK(report.transfers.pushes == found.results[0].last.steps);
  }
}

// Counted between two runs of different length, between whose ends no step is timed.
TEST_CASE("gpu training: a step is two launches, or is enqueued kernel by kernel where the driver records no graph") {
  const std::vector<std::string> recorded = {"pull_pieces",           "multiply",      "bias_relu",
                                             "softmax_cross_entropy", "relu_gradient", "send_pieces"};
  for (const Mode mode : {Mode::kAsync, Mode::kSync})
    for (const bool stream_waits : {true, false})
      for (const bool has_graphs : {true, false}) {
        CAPTURE(std::string(to_string(mode)));
        CAPTURE(stream_waits);
        CAPTURE(has_graphs);
        const auto counts_of = [&](std::uint64_t steps) {
          Box box;
          std::vector<std::string> warnings;
          train::TrainOptions options;
          options.gpu = box.place();
          options.gpu->enqueue = stream_waits ? train::Enqueue::kAhead : train::Enqueue::kStep;
          options.warn = [&](const std::string& line) { warnings.push_back(line); };
          for (int tries = stream_waits ? 2 : 1; !has_graphs && tries > 0; --tries)  // with and without the gate
            box.cuda.fail("end_capture", 0, device::kNotSupported);
          const Trained found = train_job(job(mode, 1, steps), "mlp", {options});
          const train::GpuReport& report = *found.results[0].gpu;
          CHECK(warnings.size() == (has_graphs ? 0 : stream_waits ? 2 : 1));
          // 3 of the layers, 1 of the loss, 4 of the gradients; the stand-in notes what it sends as one more.
          CHECK(report.graph_operations == (!has_graphs ? 0U : stream_waits ? 12U : 11U));
          std::map<std::string, std::size_t> counts;
          for (const std::string& call : recorded) counts[call] = box.cuda.count(call);
          for (const char* const call : {"gather_rows", "launch", "wait_value"}) counts[call] = box.cuda.count(call);
          return counts;
        };
        std::map<std::string, std::size_t> few = counts_of(40), many = counts_of(60);
        CHECK(many["gather_rows"] - few["gather_rows"] == 20);
        CHECK(many["launch"] - few["launch"] == (has_graphs ? 20 : 0));
        CHECK(many["wait_value"] == few["wait_value"]);
        for (const std::string& call : recorded) {
          CAPTURE(call);
          CHECK((many[call] - few[call] >= 20) == !has_graphs);
          if (has_graphs) CHECK(many[call] == few[call]);
        }
      }
}

TEST_CASE("gpu training: steps that are timed are graphs like the others, and their parts add up to them") {
  for (const bool is_refused : {false, true}) {
    CAPTURE(is_refused);
    Box box;
    std::vector<std::string> warnings;
    train::TrainOptions options;
    options.gpu = box.place();
    options.warn = [&](const std::string& line) { warnings.push_back(line); };
    constexpr double kPush = 2e-4;  // seconds, of which a push takes at least so many
    box.cuda.before_report = [](std::size_t piece) {
      const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(piece == 0 ? kPush : 0);
      while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    };
    for (int slot = 0; is_refused && slot < 2; ++slot) box.cuda.fail("record_in_graph", 0, device::kNotSupported);
    const Trained found = train_job(job(Mode::kSync, 1, 400), "mlp", {options});
    const train::GpuReport& report = *found.results[0].gpu;
    CHECK(report.graph_operations != 0);
    CHECK(report.step.sampled == 7);  // step 10 and each 64th from there on
    for (const double part : {report.step.pull, report.step.compute}) CHECK(part > 0);
    CHECK(report.step.push >= kPush);
    CHECK(report.step.total() < 10 * found.results[0].seconds / 400);
    CHECK(warnings.size() == (is_refused ? 2 : 0));  // one for each of two slots
    for (const std::string& line : warnings) CHECK(line.find("steps that are timed") != std::string::npos);
    // Kernel by kernel: the first step of each slot, and timed ones whose graph is refused; the rest is recorded.
    CHECK(box.cuda.count("softmax_cross_entropy") == (is_refused ? 2U + 2U + 7U : 2U + 4U));
  }
}

// With the same kernels: another GPU, or a CPU instead of a GPU, rounds differently.
TEST_CASE("gpu training: in sync mode two runs give the same bits, with or without GPUs, for each transfer dtype") {
  for (const Wire wire : {Wire::kFloat32, Wire::kBFloat16}) {
    std::array<Box, 2> boxes;
    std::vector<std::uint64_t> digests;
    for (int run = 0; run < 2; ++run)
      digests.push_back(train_job(job(Mode::kSync, 3, 60), "mlp", mixed(boxes, {}, wire)).digest);
    CHECK(digests[0] == digests[1]);
  }
}

TEST_CASE("gpu training: with the CPUs' page tables a large model is pulled by a kernel, in one graph a step") {
  const train::DataSplit data = test::wide_digits(66);  // a model of more than 8 MiB
  for (const bool host_page_tables : {true, false}) {
    Box box({.host_page_tables = host_page_tables});
    train::TrainOptions options;
    options.gpu = box.place();
    JobConfig config = job(Mode::kAsync, 1, 12);
    config.chunk_bytes = std::uint64_t{1} << 20;  // large enough for the copy engine
    const train::GpuReport report = *train_job(config, "mlp", {options}, data).results[0].gpu;
    const bool by_kernel = report.transfers.strategy == "pulls by a kernel, pushes staged";
    CHECK(by_kernel == host_page_tables);
    CHECK((report.graph_operations != 0) == by_kernel);
    CHECK((box.cuda.count("copy_batch") > 0) == !by_kernel);
  }
}

TEST_CASE("gpu training: however steps are enqueued, sync mode gives the same bits") {
  std::vector<std::uint64_t> digests;
  for (const train::Enqueue enqueue : {train::Enqueue::kAhead, train::Enqueue::kStep, train::Enqueue::kKernels}) {
    std::array<Box, 2> boxes;
    std::vector<train::TrainOptions> options = mixed(boxes, {});
    for (const std::size_t rank : {0U, 1U}) options[rank].gpu->enqueue = enqueue;
    const Trained trained = train_job(job(Mode::kSync, 3, 60), "mlp", options);
    digests.push_back(trained.digest);
    const bool has_graphs = enqueue != train::Enqueue::kKernels;
    for (const std::size_t rank : {0U, 1U}) {
      CHECK((trained.results[rank].gpu->graph_operations != 0) == has_graphs);
      CHECK((boxes[rank].cuda.count("launch") > 0) == has_graphs);
      CHECK((boxes[rank].cuda.count("begin_capture") > 0) == has_graphs);
      // Once when the link is made; then at each gate, or in each graph that has it.
      CHECK((boxes[rank].cuda.count("wait_value") > 1) == (enqueue == train::Enqueue::kAhead));
    }
  }
  CHECK(digests == std::vector<std::uint64_t>(3, digests[0]));
}

TEST_CASE(
    "gpu training: a guard that skips sees each loss before its gradient is pushed, one that stops behind the push") {
  for (const Mode mode : {Mode::kAsync, Mode::kSync})
    for (const std::uint64_t push_every : {1U, 3U}) {
      CAPTURE(std::string(to_string(mode)));
      CAPTURE(push_every);
      train::TrainOptions options;
      options.push_every = push_every;
      options.on_nan = OnNan::kSkip;
      check_same_as_processor(job(mode, 1, 40), options);
      JobConfig diverging = job(mode, 1, 40);
      diverging.optimizer.lr = 1e30F;
      Box box;
      options.gpu = box.place();
      const Trained found = train_job(diverging, "mlp", {options});
      CHECK(found.results[0].last.steps == 40);
      CHECK(found.results[0].gpu->transfers.pushes == 1);
      options.on_nan = OnNan::kStop;
      diverging.job = test::unique_job_name();
      CHECK_THROWS_WITH_AS(train_job(diverging, "mlp", {options}),
                           doctest::Contains("worker 0 stops: the loss is nan at training step 2"), Error);
    }
}

TEST_CASE("gpu training: a trace has a separate track for the GPU, whose stages follow each other within the run") {
  for (const Mode mode : {Mode::kAsync, Mode::kSync}) {
    CAPTURE(std::string(to_string(mode)));
    const test::Folder folder;
    const JobConfig config = job(mode, 1, 40);
    Box box;
    const auto now = [] { return train::PhaseTimer::ns(train::PhaseTimer::Clock::now()); };
    const std::uint64_t begin = now();
    {
      Server server(config);
      Worker worker(test::options(config, 0));
      train::SpanLog trace(folder.path("trace"));
      trace.begin_worker(0);
      train::TrainOptions options;
      options.gpu = box.place();
      options.trace = &trace;
      const train::Dataset& data = test::digits().train;
      const auto model = train::make_model("mlp", data.features, data.classes);
      train::train(worker, *model, data, options);
    }
    const std::uint64_t end = now();

    std::ifstream file(folder.path("trace"));
    const auto events = nlohmann::json::parse(file);
    std::uint64_t samples = 0;
    double last_begin = 0, last_push_end = 0;  // each sample is written at its end
    std::string before;
    for (const auto& event : events) {
      if (event["tid"] != 1000) continue;
      if (event["ph"] == "M") {
        CHECK(event["args"]["name"] == "GPU of worker 0");
        continue;
      }
      const double from = event["ts"], to = from + event["dur"].get<double>();
      CHECK(from * 1e3 >= double(begin));
      CHECK(to * 1e3 <= double(end));
      if (event["name"] == "push") {
        ++samples;
        CHECK(event["args"]["step"].get<std::uint64_t>() < 40);
        CHECK(to > last_push_end);
        last_push_end = to;
      } else {
        CHECK(event["name"] == (before == "push" ? "compute" : "pull"));
        CHECK(to <= last_begin + 0.002);
      }
      before = event["name"];
      last_begin = from;
    }
    CHECK(before == "pull");
    CHECK(samples >= 14);  // every second one of 40 steps, except the first ones
    CHECK(samples <= 16);
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
      for (std::uint32_t rank = 0; rank < 3; ++rank)
        workers.push_back(std::make_unique<Worker>(test::options(config, rank)));
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
