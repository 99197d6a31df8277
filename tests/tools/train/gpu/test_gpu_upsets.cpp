// Disturbances of a GPU worker's training: torn pulls, refused graphs, delays, failures, stops, changes.
#include "support/gpu_training.hpp"

#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "ps_shm/job_control.hpp"
#include "ps_shm/server.hpp"
#include "support/manual_clock.hpp"
#include "support/processes.hpp"

using namespace ps_shm;
using test::Box;
using test::digits;
using test::FakeBox;
using test::job;
using test::kRounding;
using test::options;
using test::train_job;
using test::Trained;
using test::worst_difference;

TEST_CASE("gpu training: a step whose pull was torn is computed again, and sent again if it is one graph") {
  // In the last three the shard grows meanwhile and is registered again, or cannot be: no graph of before may run then.
  struct Case {
    bool waits, has_graphs, grows = false, is_refused = false;
  };
  for (const Case& one : {Case{true, false},
                          {false, false},
                          {true, true},
                          {false, true},
                          {true, true, true},
                          {false, true, true},
                          {true, true, true, true}}) {
    const bool waits = one.waits, has_graphs = one.has_graphs, grows = one.grows, is_refused = one.is_refused;
    CAPTURE(waits);
    CAPTURE(has_graphs);
    CAPTURE(grows);
    CAPTURE(is_refused);
    Box box({.stream_waits = waits});
    for (int tries = waits ? 2 : 1; !has_graphs && tries > 0; --tries)  // with and without a wait
      box.cuda.fail("begin_capture", 0, device::kNotSupported);
    for (int tries = 2; is_refused && tries > 0; --tries)  // read-only, and not
      box.cuda.fail("host_register", 3, device::kNotSupported);
    JobConfig config = job(Mode::kAsync, 1, 40);
    const Trained expected = train_job(config, "mlp", {{}});
    config.job = test::unique_job_name();
    config.max_workers = 2;
    std::unique_ptr<Worker> other;
    std::optional<Variable> weights;
    int pulls = 0, more = 0;
    // Pushes zeros to what is being copied: the version changes, the values do not; in the end the CPU copies.
    box.cuda.during_pull = [&](std::size_t piece) {
      if (piece != 1 || (pulls++ / 3) % 2 != 0) return;
      if (!other) other = std::make_unique<Worker>(test::options(config, 1));
      if (!weights) weights = other->variable("hid_w");
      if (grows && pulls > 30 && more < 4) {  // once there are graphs; buffers change hands, too
        const VariableSpec spec{.name = "more" + std::to_string(more++), .shape = {20011}};
        other->push(other->variable(spec, [](std::span<float>) {}), std::vector<float>(20011, 1.0F));
      }
      for (int i = 0; i < 6; ++i) other->push(*weights, std::vector<float>(weights->element_count(), 0.0F));
    };
    train::TrainOptions options;
    options.gpu = box.place();
    options.warn = [](const std::string&) {};
    std::vector<float> after;
    {
      const train::Dataset& data = digits().train;
      Server server(config);
      Worker worker(test::options(config, 0));
      const auto model = train::make_model("mlp", data.features, data.classes);
      train::TrainResult result = train::train(worker, *model, data, options);
      // Kernel by kernel, so that each step, computed once or again, is a call of its own.
      const std::size_t bounced = result.gpu->transfers.bounced_chunks;
      CHECK(bounced > 1);
      CHECK((result.gpu->transfers.registrations > 3) == grows);
      if (!has_graphs) CHECK(box.cuda.count("softmax_cross_entropy") >= result.last.steps + bounced);
      CHECK((result.gpu->graph_operations != 0) == (has_graphs && !is_refused));
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
  options.gpu->enqueue = train::Enqueue::kStep;
  JobConfig config = job(Mode::kAsync, 1, 20);
  const Trained trained = train_job(config, "softmax", {options});
  CHECK(trained.results[0].gpu->step.sampled == 1);
  CHECK(pushes >= 20);
  CHECK(waited_for == 0);
}

TEST_CASE("gpu training: if no graph can be created, it is reported and kernels are launched one by one") {
  for (const char* call : {"begin_capture", "end_capture"}) {
    Box box;
    for (int tries = 0; tries < 2; ++tries) box.cuda.fail(call, 0, device::kNotSupported);  // with and without a wait
    train::TrainOptions options;
    options.gpu = box.place();
    std::vector<std::string> warnings;
    options.warn = [&](const std::string& line) { warnings.push_back(line); };
    const Trained trained = train_job(job(Mode::kAsync, 1, 60), "softmax", {options});
    CHECK(box.cuda.count("launch") == 0);
    CHECK(box.cuda.count("begin_capture") == 2);
    CHECK(trained.results[0].gpu->graph_operations == 0);
    REQUIRE(warnings.size() == 2);
    CHECK(warnings[0].find("not enqueued ahead") != std::string::npos);
    CHECK(warnings[1].find("kernel by kernel") != std::string::npos);
  }
}

TEST_CASE("gpu training: with a driver that refuses waits in graphs, steps are graphs that are not enqueued ahead") {
  for (const bool by_the_call : {true, false}) {  // or when the recording ends
    CAPTURE(by_the_call);
    Box box;
    if (by_the_call)
      box.cuda.fail("wait_value", 2, test::kCaptureUnsupported);  // the first one in a recording
    else
      box.cuda.fail("end_capture", 0, device::kNotSupported);
    train::TrainOptions options;
    options.gpu = box.place();
    std::vector<std::string> warnings;
    options.warn = [&](const std::string& line) { warnings.push_back(line); };
    JobConfig config = job(Mode::kSync, 1, 60);
    const Trained trained = train_job(config, "mlp", {options});
    CHECK(trained.results[0].gpu->graph_operations == 11);
    CHECK(box.cuda.count("wait_value") < 5);
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0].find("not enqueued ahead") != std::string::npos);
    config.job = test::unique_job_name();
    CHECK(worst_difference(trained, train_job(config, "mlp", {{}})) < kRounding);
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
  const train::TrainResult delayed = std::move(train_job(config, "softmax", {options}).results[0]);
  CHECK(delayed.phases.delay > 0.9 * 20 * 2 * 0.003);
  CHECK(delayed.gpu->graph_operations == 0);  // a graph would send before the delay
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
    // The stream waits once before graphs do, which is recorded and no call that can fail.
    const bool is_early = call == std::string("allocate") || call == std::string("wait_value");
    box.cuda.fail(call, is_early ? 1 : 3, device::kInvalidValue);
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

// The next step is one graph that waits for this one. In sync mode what it sent would overwrite the gradient of this
// step, which other workers may still read. Only bfloat16 lands in a buffer of the worker's own, and may be sent.
TEST_CASE(
    "gpu training: if a worker ends while a step waits for its peers, nothing of the next step reaches the segment") {
  constexpr std::size_t kSteps = 20;
  struct Case {
    Wire wire;
    bool is_told_to_stop;  // or else the job ends
  };
  for (const Case& one : {Case{Wire::kFloat32, false}, {Wire::kFloat32, true}, {Wire::kBFloat16, false}}) {
    const Wire wire = one.wire;
    const bool is_told_to_stop = one.is_told_to_stop;
    CAPTURE(is_told_to_stop);
    Box box;
    std::atomic<std::size_t> sent{0};
    std::atomic<bool> is_stopped{false};
    box.cuda.before_report = [&](std::size_t piece) { sent += piece == 0 ? 1 : 0; };
    const JobConfig config = job(Mode::kSync, 2, 0);
    Server server(config);
    WorkerOptions of_worker = test::options(config, 0);
    of_worker.stop_requested = [&] { return is_stopped.load(); };
    Worker worker(of_worker);
    std::optional<Worker> peer(test::options(config, 1));
    const train::Dataset& data = digits().train;
    const auto model = train::make_model("mlp", data.features, data.classes);
    std::thread trains([&] {
      train::TrainOptions options;
      options.gpu = box.place();
      options.gpu->wire = wire;
      options.stop_requested = of_worker.stop_requested;
      options.warn = [](const std::string&) {};
      const train::TrainResult result = train::train(worker, *model, data, options);
      CHECK(result.gpu->graph_operations != 0);
      CHECK(result.last.steps == kSteps);
      CHECK(result.is_interrupted == is_told_to_stop);
      worker.leave();
    });
    std::vector<Variable> variables;
    for (const train::ParameterSpec& spec : model->parameters()) variables.push_back(peer->variable(spec.name));
    for (std::size_t step = 0; step < kSteps; ++step) {
      for (const Variable& variable : variables)
        peer->push(variable, std::vector<float>(variable.element_count(), 0.0F));
      peer->step();
    }
    // Of the steps 1 to kSteps + 1 all but the first two are graphs, and so is the next one, which has been enqueued.
    CHECK(test::eventually([&] { return box.cuda.count("launch") == kSteps && sent == kSteps + 1; }));
    is_stopped = is_told_to_stop;
    ServeHooks hooks;
    hooks.stop_requested = [] { return true; };
    std::optional<std::thread> serves;
    if (!is_told_to_stop) serves.emplace([&] { server.serve(hooks); });
    trains.join();
    CHECK(sent == kSteps + (wire == Wire::kFloat32 ? 1 : 2));
    peer.reset();
    if (serves) serves->join();
  }
}

TEST_CASE(
    "gpu training: a GPU that stops is reported every 10 s, shown, and given up when the worker is told to stop") {
  struct Case {
    bool in_push;
    std::uint32_t threads;
    train::Enqueue enqueue;
    const char *what, *context;
  };
  for (const Case& one : {Case{false, 1, train::Enqueue::kAhead, "pull, chunk ", ", in the graph of a step"},
                          Case{false, 1, train::Enqueue::kKernels, "pull, chunk ", ", in a step without a graph"},
                          Case{true, 1, train::Enqueue::kStep, "push, chunk ", ", in the graph of a step"},
                          Case{true, 3, train::Enqueue::kAhead, "push, chunk ", ", in the graph of a step"}}) {
    CAPTURE(one.in_push);
    CAPTURE(one.threads);
    test::ManualClock clock;
    std::atomic<int> moments{0};
    std::atomic<bool> is_stuck{false}, goes_on{false}, is_stopped{false}, is_over{false};
    test::FakeCuda cuda;  // no Box: what the GPU may still use is not released
    test::FakeKernels transfers(cuda);
    test::FakeModelKernels kernels(cuda);
    const auto stick = [&](std::size_t) {
      if (++moments < 300) return;
      is_stuck = true;
      while (!goes_on) std::this_thread::yield();
    };
    (one.in_push ? cuda.before_report : cuda.during_pull) = stick;

    std::mutex mutex;
    std::vector<std::string> lines;
    JobConfig config = job(Mode::kAsync, 1, 0);
    config.threads = one.threads;
    Server server(config);
    WorkerOptions of_worker = test::options(config, 0);
    of_worker.threads = one.threads;
    of_worker.stop_requested = [&] { return is_stopped.load(); };
    of_worker.log = [&](const std::string& line) {
      const std::lock_guard lock(mutex);
      lines.push_back(line);
    };
    Worker worker(of_worker);
    std::thread trains([&] {
      const train::Dataset& data = digits().train;
      const auto model = train::make_model("mlp", data.features, data.classes);
      train::TrainOptions options;
      options.gpu = train::GpuPlace{.gpu = device::probe_gpus(cuda).gpus.at(0),
                                    .enqueue = one.enqueue,
                                    .cuda = &cuda,
                                    .transfers = &transfers,
                                    .kernels = &kernels};
      options.stop_requested = of_worker.stop_requested;
      const train::TrainResult result = train::train(worker, *model, data, options);
      CHECK(result.is_interrupted);
      is_over = true;
    });
    const auto count_lines = [&] {
      const std::lock_guard lock(mutex);
      return lines.size();
    };
    const auto pass_until = [&](std::size_t count) {
      return test::eventually([&] { return clock.advance(test::kSecond / 4), count_lines() >= count; });
    };
    const auto shown = [&] { return JobView(config.job).workers().at(0).waiting_for; };
    REQUIRE(test::eventually([&] { return is_stuck.load(); }));
    clock.advance(9 * test::kSecond);
    CHECK(count_lines() == 0);
    CHECK(shown().empty());
    REQUIRE(pass_until(1));
    CHECK(shown() == "gpu");
    REQUIRE(pass_until(2));
    is_stopped = true;
    // On a slow machine so much time may pass that more such lines come before the last one.
    REQUIRE(test::eventually([&] { return clock.advance(test::kSecond / 4), is_over.load(); }));
    trains.join();
    CHECK(shown().empty());
    goes_on = true;
    static_cast<void>(cuda.release(nullptr));  // waits for what the GPU still does

    REQUIRE(lines.size() >= 3);
    CHECK(lines.back().find("the GPU has not answered for ") != std::string::npos);
    lines.pop_back();
    CHECK(lines.size() <= clock.passed_ns() / (10 * test::kSecond));
    const std::string begin = "worker 0: waiting for the GPU for ";
    int told = 0;
    for (const std::string& line : lines) {
      REQUIRE(line.find(begin) == 0);
      const int seconds = std::stoi(line.substr(begin.size()));
      CHECK(seconds >= 10 + (one.threads == 1 ? told : 0));  // each thread counts from where its own wait began
      told = seconds;
      CHECK(line.find(one.what) != std::string::npos);
      CHECK(line.find(one.context) != std::string::npos);
    }
    worker.leave();
  }
}

TEST_CASE("gpu training: a rate that is changed while the job runs applies from the GPU's next local step") {
  Box box;
  JobConfig config = job(Mode::kAsync, 1, 60);
  config.optimizer.rule = UpdateRule::kAdd;
  config.optimizer.lr = 0.1F;
  train::TrainOptions options;
  options.push_every = 2;
  std::vector<Trained> trained;
  for (const bool has_gpu : {false, true}) {
    config.job = test::unique_job_name();
    if (has_gpu) options.gpu = box.place();
    int asked = 0;
    options.stop_requested = [&] {
      if (++asked == 20)  // once per step, before it
        JobControl(config.job).change([](LiveSettings& settings) { settings.lr = 0.02F; });
      return false;
    };
    trained.push_back(train_job(config, "mlp", {options}));
  }
  CHECK(worst_difference(trained[0], trained[1]) < kRounding);
}
