// Hooks of a loop: the order in which they are called, and what each of them does. The guard against NaN has
// test_nan_guard.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "ps_shm/checkpoint.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/hooks.hpp"
#include "ps_shm/server.hpp"
#include "support/looping_worker.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

// Records how it is called.
class Recorder : public Hook {
 public:
  Recorder(std::string name, std::vector<std::string>& calls) : name_(std::move(name)), calls_(calls) {}
  void begin(StepLoop&) override { note("begin"); }
  void before_step(StepLoop&) override { note("before"); }
  bool after_gradient(StepLoop&, double) override {
    note("gradient");
    return true;
  }
  void after_step(StepLoop&, const StepReport&) override { note("after"); }
  void after_save(StepLoop&, const std::string&) override { note("save"); }
  void end(StepLoop&) override { note("end"); }

 private:
  void note(const std::string& call) { calls_.push_back(name_ + " " + call); }
  const std::string name_;
  std::vector<std::string>& calls_;
};

}  // namespace

TEST_CASE("hooks are called in order, in every phase") {
  Job job({.chunk_bytes = 1024, .optimizer = {.lr = 0.5F}, .linger = Seconds(0)});
  LoopingWorker member(job.config);
  std::vector<std::string> calls;
  const auto saving = std::make_shared<Calling>();
  saving->on_step = [&](StepLoop& loop, const StepReport&) { loop.saved("folder"); };
  const StepReport last = member.run(
      {std::make_shared<Recorder>("a", calls), stop_at_step(2), saving, std::make_shared<Recorder>("b", calls)},
      falling);
  const std::vector<std::string> of_step = {"a before", "b before", "a gradient", "b gradient",
                                            "a after",  "a save",   "b save",     "b after"};
  std::vector<std::string> expected = {"a begin", "b begin"};
  for (int step = 0; step < 2; ++step) expected.insert(expected.end(), of_step.begin(), of_step.end());
  expected.insert(expected.end(), {"a end", "b end"});
  CHECK(calls == expected);
  CHECK(last.steps == 2);
  CHECK(last.global_step == 2);
  CHECK(last.loss == 0.5);
  CHECK(last.was_pushed);
}

TEST_CASE("a gradient that one hook rejects is not pushed, the other hooks are still called, and the step ends") {
  Job job({.chunk_bytes = 1024, .optimizer = {.lr = 0.5F}, .linger = Seconds(0)});
  LoopingWorker member(job.config);
  int asked = 0;
  const auto refusing = std::make_shared<Calling>(), counting = std::make_shared<Calling>();
  refusing->on_gradient = [](StepLoop&, double loss) { return loss != 0.5; };
  counting->on_gradient = [&](StepLoop&, double) { return ++asked > 0; };
  std::vector<bool> pushed;
  counting->on_step = [&](StepLoop&, const StepReport& report) { pushed.push_back(report.was_pushed); };
  member.run({refusing, counting, stop_at_step(4)}, falling);
  CHECK(asked == 4);
  CHECK(pushed == std::vector<bool>{true, false, true, true});
  CHECK(member.value() == -1.5F);
  CHECK(member.worker.global_step() == 4);
}

TEST_CASE("a loop stops at a step, even one that is already over") {
  Job job({.chunk_bytes = 1024, .optimizer = {.lr = 0.5F}, .linger = Seconds(0)});
  LoopingWorker member(job.config);
  CHECK(member.run({stop_at_step(3)}, falling).global_step == 3);
  CHECK(member.run({stop_at_step(3)}, falling).steps == 0);
  CHECK(member.run({stop_at_step(5)}, falling).steps == 2);
  CHECK(member.value() == -2.5F);
}

TEST_CASE("a loop stops when the mean of its last losses is low enough") {
  Job job({.chunk_bytes = 1024, .optimizer = {.lr = 0.5F}, .linger = Seconds(0)});
  LoopingWorker member(job.config);
  CHECK(member.run({stop_at_loss(0.25)}, falling).steps == 4);
  member.asked = 0;
  CHECK(member.run({stop_at_loss(0.25, 3)}, falling).steps ==
        6);  // the mean of 1/4, 1/5, 1/6; that of 1/3, 1/4, 1/5 is above
  member.asked = 0;
  const auto with_nan = [](std::uint64_t step) { return step == 2 ? kNan : 0.1; };
  CHECK(member.run({stop_at_loss(0.25, 2)}, with_nan).steps == 4);
  CHECK_THROWS_WITH_AS(stop_at_loss(0.1, 0), doctest::Contains("the number of steps is 0"), Error);
}

TEST_CASE("a loop ends with its job") {
  JobConfig config = config_of({.chunk_bytes = 1024, .optimizer = {.lr = 0.5F}, .steps = 3, .linger = Seconds(0)});
  Server server(config);
  LoopingWorker member(config);
  std::vector<std::string> calls;
  CHECK(member.run({std::make_shared<Recorder>("a", calls)}, falling).steps == 3);
  CHECK(calls.back() == "a end");
}

TEST_CASE("an exception of a hook propagates to the caller, and the worker can continue") {
  Job job({.chunk_bytes = 1024, .optimizer = {.lr = 0.5F}, .linger = Seconds(0)});
  LoopingWorker member(job.config);
  std::vector<std::string> calls;
  const auto recorder = std::make_shared<Recorder>("a", calls);
  for (const bool in_step : {false, true}) {
    const auto throwing = std::make_shared<Calling>();
    if (in_step)
      throwing->on_step = [](StepLoop&, const StepReport&) { throw std::runtime_error("mine"); };
    else
      throwing->on_gradient = [](StepLoop&, double) -> bool { throw std::runtime_error("mine"); };
    CHECK_THROWS_WITH_AS(member.run({recorder, throwing}, falling), "mine", std::runtime_error);
  }
  CHECK(std::find(calls.begin(), calls.end(), "a end") == calls.end());
  CHECK(member.value() == -0.5F);  // the second one's was pushed
  CHECK(member.run({stop_at_step(4)}, falling).steps == 3);
  CHECK(member.value() == -2.0F);
}

TEST_CASE("a null hook is refused before the first step") {
  Job job({.chunk_bytes = 1024, .linger = Seconds(0)});
  LoopingWorker member(job.config);
  CHECK_THROWS_WITH_AS(member.run({stop_at_step(1), nullptr}, falling), "hook 1 is null", Error);
  CHECK(member.value() == 0);
}

TEST_CASE("logging and timing report progress at an interval of global steps") {
  Job job({.chunk_bytes = 1024, .optimizer = {.lr = 0.5F}, .linger = Seconds(0)});
  LoopingWorker member(job.config);
  Lines logged, timed;
  member.run({logging({.steps = 4}, logged.log()), timing({.steps = 5}, timed.log()), stop_at_step(11)}, falling);
  CHECK(logged.lines == std::vector<std::string>{"worker 0: step 4 (global step 4), loss 0.25",
                                                 "worker 0: step 8 (global step 8), loss 0.125"});
  REQUIRE(timed.lines.size() == 2);
  CHECK(is_in("worker 0: ", timed.lines[0]));
  CHECK(is_in(" steps/s, ", timed.lines[0]));
  CHECK_THROWS_WITH_AS(logging({}), doctest::Contains("give steps or seconds"), Error);
}

TEST_CASE("summaries are written at their interval, and once more at the end") {
  const JobConfig config = config_of({.chunk_bytes = 1024, .optimizer = {.lr = 0.5F}, .linger = Seconds(0)});
  Server server(config);
  LoopingWorker member(config);
  std::vector<std::uint64_t> steps;
  std::vector<double> losses;
  const auto write = [&](std::uint64_t global_step, std::span<const Scalar> scalars) {
    steps.push_back(global_step);
    REQUIRE(scalars.size() == 5);
    CHECK(std::string(scalars[0].name) == "loss");
    losses.push_back(scalars[0].value);
    CHECK(std::string(scalars[1].name) == "steps_per_second");
    CHECK(scalars[1].value > 0);
    CHECK(scalars[2].value == scalars[1].value);  // the job has only this worker
  };
  member.run({summaries({.steps = 4}, write), stop_at_step(10)}, [](std::uint64_t step) { return double(step); });
  CHECK(steps == std::vector<std::uint64_t>{4, 8, 10});
  CHECK(losses == std::vector<double>{2.5, 6.5, 9.5});
}

TEST_CASE("checkpointing saves the job's state, notifies the other hooks, and keeps the newest") {
  const JobConfig config =
      config_of({.workers = 2, .chunk_bytes = 1024, .optimizer = {.lr = 0.5F}, .linger = Seconds(0)});
  Folder folder;
  Server server(config);
  LoopingWorker member(config), other(config, 1);
  Lines said;
  std::vector<std::string> calls;
  const auto kept = [&] {
    return checkpointing({.dir = folder.path(), .every = {.steps = 3}, .keep = 2, .log = said.log()});
  };
  member.run({kept(), std::make_shared<Recorder>("a", calls), stop_at_step(10)}, falling);
  CHECK(std::count(calls.begin(), calls.end(), "a save") == 4);
  CHECK(calls[calls.size() - 2] == "a save");  // at the end
  CHECK(checkpoints_in(folder) == std::vector<std::string>{"step-10", "step-9"});
  const Checkpoint last(folder.path() + "/step-9");
  std::vector<float> values(kElements);
  last.read("v", std::as_writable_bytes(std::span(values)));
  CHECK(values.back() == -4.5F);
  CHECK(*last.loss() == doctest::Approx((1.0 / 7 + 1.0 / 8 + 1.0 / 9) / 3));
  REQUIRE(said.lines.size() == 4);
  CHECK(is_in("written in", said.lines[0]));

  other.run({kept(), stop_at_step(20)}, falling);  // rank 1 keeps no checkpoints
  CHECK(checkpoints_in(folder) == std::vector<std::string>{"step-10", "step-9"});
  const auto first = std::make_shared<Calling>();
  first->on_step = [&](StepLoop&, const StepReport&) {
    CHECK_THROWS_WITH_AS(member.run({kept()}, falling), doctest::Contains("another process writes checkpoints"), Error);
  };
  member.run({kept(), first, stop_at_step(21)}, falling);
  CHECK_THROWS_WITH_AS(checkpointing({.dir = ""}), doctest::Contains("name the folder"), Error);
}

TEST_CASE("checkpointing that fails is reported, and training continues") {
  const JobConfig config = config_of({.chunk_bytes = 1024, .optimizer = {.lr = 0.5F}, .linger = Seconds(0)});
  Folder folder;
  Server server(config);
  LoopingWorker member(config);
  Lines said;
  const auto breaking = std::make_shared<Calling>();
  breaking->on_gradient = [&](StepLoop&, double) {
    fs::remove_all(folder.path());
    std::FILE* const file = std::fopen(folder.path().c_str(), "w");
    if (file != nullptr) std::fclose(file);
    return true;
  };
  const StepReport last = member.run(
      {checkpointing({.dir = folder.path(), .every = {.steps = 2}, .log = said.log()}), breaking, stop_at_step(3)},
      falling);
  CHECK(last.steps == 3);
  REQUIRE(said.lines.size() == 2);
  CHECK(is_in("checkpoint failed: cannot write", said.lines[0]));
  CHECK(is_in("training continues", said.lines[0]));
}
