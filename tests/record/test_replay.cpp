// Replays: calls wait for their turn, compute what was recorded, and end when one of the workers has died.
#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_control.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "record/folder.hpp"
#include "record/order.hpp"
#include "record/recorder.hpp"
#include "record/replayer.hpp"
#include "support/folder.hpp"
#include "support/job.hpp"
#include "support/manual_clock.hpp"
#include "support/processes.hpp"

namespace {

using namespace ps_shm;
using test::kSecond, test::ManualClock;

// A straggler asks during its delay, which a replay omits: it is told at the next call, and continues by the record.
TEST_CASE("record: what a program does after it was told to end is replayed, wherever it had asked") {
  const test::Folder folder;
  JobConfig config = test::config_of({.workers = 2, .steps = 1});
  const auto run = [&](const record::ReplayCoordinator* coordinator) {
    config.job = test::unique_job_name();
    Server server(config);
    const ManualClock clock(ManualClock::Sleeps::kPass);
    const auto join = [&](std::uint32_t rank) {
      WorkerOptions given = test::options(config, rank);
      (coordinator == nullptr ? given.record : given.replay) = folder.path();
      if (coordinator != nullptr) given.replay_coordinator = coordinator->path();
      given.stop_requested = [&] { return clock.passed_ns() > 20 * kSecond; };  // instead of waiting for ever
      return Worker(given);
    };
    std::vector<float> out(10);
    const std::vector<float> ones(10, 1.0F);
    Worker asks = join(0), pushes = join(1);
    const Variable asked = asks.variable(test::vector_of(10), test::zero);
    const Variable pushed = pushes.variable(test::vector_of(10), test::zero);
    asks.pull(asked, out);
    pushes.pull(pushed, out);
    pushes.push(pushed, ones);
    pushes.step();
    if (coordinator == nullptr)
      CHECK(asks.finished());
    else
      CHECK_THROWS_AS(asks.push(asked, ones), JobFinished);
    CHECK(asks.finished());
    asks.pull(asked, out);
    CHECK(out == ones);
    asks.leave();
    pushes.push(pushed, ones);  // a replay waits for the pull before it
    pushes.pull(pushed, out);
    CHECK(out == std::vector<float>(10, 2.0F));
  };
  run(nullptr);
  const record::ReplayCoordinator coordinator(record::Records(folder.path()).order().chunks());
  run(&coordinator);
}

TEST_CASE("record: a replayed call waits for its turn, and computes what was recorded") {
  const test::Folder folder;
  const std::vector<float> ones(10, 1.0F), twos(10, 2.0F);
  JobConfig config =
      test::config_of({.workers = 2, .optimizer = {.rule = UpdateRule::kMomentum, .lr = 0.5F, .momentum = 0}});
  struct Two {
    Worker first, second;
    Variable of_first, of_second;
    std::vector<float> out = std::vector<float>(10);

    float pull() {
      first.pull(of_first, out);
      return out[0];
    }
    void push(const std::vector<float>& gradient) { second.push(of_second, gradient); }
  };
  const auto run = [&](bool is_replayed, const std::function<void(Two&)>& body) {
    config.job = test::unique_job_name();
    Server server(config);
    const record::ReplayCoordinator coordinator(is_replayed ? record::Records(folder.path()).order().chunks() : 1);
    const ManualClock clock(ManualClock::Sleeps::kPass);
    const auto join = [&](std::uint32_t rank) {
      WorkerOptions given = test::options(config, rank);
      (is_replayed ? given.replay : given.record) = folder.path();
      if (is_replayed) given.replay_coordinator = coordinator.path();
      given.stop_requested = [&] { return clock.passed_ns() > 20 * kSecond; };  // instead of waiting for ever
      return Worker(given);
    };
    Worker first = join(0), second = join(1);
    const Variable of_first = first.variable(test::vector_of(10, UpdateRule::kMomentum), test::zero);
    const Variable of_second = second.variable(test::vector_of(10, UpdateRule::kMomentum), test::zero);
    Two two{.first = std::move(first), .second = std::move(second), .of_first = of_first, .of_second = of_second};
    body(two);
  };
  const auto replay = [&](const std::function<void(Two&)>& body) { run(true, body); };
  run(false, [&](Two& two) {
    CHECK(two.pull() == 0);
    two.push(ones);
    CHECK(two.pull() == -0.5F);
    JobControl(config.job).change([](LiveSettings& live) { live.lr = 0.25F, live.momentum = 0.5F; });
    two.second.step();
    two.push(ones);
    CHECK(two.pull() == -0.875F);
    two.first.step();
  });
  replay([&](Two& two) {  // with the runtime settings of the recording
    CHECK(two.pull() == 0);
    two.push(ones);
    CHECK(two.pull() == -0.5F);
    two.second.step();
    two.push(ones);
    CHECK(two.pull() == -0.875F);
    two.first.step();
  });
  replay([&](Two& two) { CHECK_THROWS_AS(two.push(ones), Interrupted); });  // the first one has not pulled (replay.P2)
  replay([&](Two& two) {
    two.pull();
    two.push(ones);
    two.second.step();
    CHECK_THROWS_AS(two.push(ones), Interrupted);  // pulls are counted by version (replay.P2)
  });
  replay([&](Two& two) {
    two.pull();
    CHECK_THROWS_AS(two.pull(), Interrupted);  // there is no push yet
  });
  replay([&](Two& two) {
    two.pull();
    CHECK_THROWS_WITH_AS(two.push(twos), doctest::Contains("the pushed values differ from the recorded ones"), Error);
    CHECK_THROWS_WITH_AS(two.pull(), doctest::Contains("worker 1 differs from its recording"), JobFinished);
  });
}

TEST_CASE("record: a replayed step waits for its turn, even once a worker has left in good order") {
  const test::Folder folder;
  JobConfig config = test::config_of({.workers = 3});
  using Workers = std::array<std::optional<Worker>, 3>;
  const auto run = [&](bool is_replayed, const std::function<void(Workers&)>& body) {
    config.job = test::unique_job_name();
    Server server(config);
    const record::ReplayCoordinator coordinator(is_replayed ? record::Records(folder.path()).order().chunks() : 1);
    const ManualClock clock(ManualClock::Sleeps::kPass);
    Workers workers;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      WorkerOptions given = test::options(config, rank);
      (is_replayed ? given.replay : given.record) = folder.path();
      if (is_replayed) given.replay_coordinator = coordinator.path();
      given.stop_requested = [&] { return clock.passed_ns() > 20 * kSecond; };  // instead of waiting for ever
      workers[rank].emplace(given);
    }
    body(workers);
  };
  for (const bool is_replayed : {false, true})
    run(is_replayed, [&](Workers& workers) {
      for (std::optional<Worker>& worker : workers) worker->step();
      CHECK(workers[1]->step() == 4);
    });
  run(true, [&](Workers& workers) {
    workers[0]->step();
    workers[0].reset();
    CHECK_THROWS_AS(workers[2]->step(), Interrupted);
  });
}

TEST_CASE("record: a replay ends when one of its workers has died") {
  const test::Folder folder;
  JobConfig config = test::config_of({.workers = 2});
  const auto options_of = [&](std::uint32_t rank, const record::ReplayCoordinator* coordinator) {
    WorkerOptions given = test::options(config, rank);
    (coordinator == nullptr ? given.record : given.replay) = folder.path();
    if (coordinator != nullptr) given.replay_coordinator = coordinator->path();
    return given;
  };
  {
    Server server(config);
    Worker first(options_of(0, nullptr)), second(options_of(1, nullptr));
    first.step();
    second.step();
  }
  config.job = test::unique_job_name();
  Server server(config);
  const record::ReplayCoordinator coordinator(record::Records(folder.path()).order().chunks());
  const test::Bell has_joined;
  test::Child dying([&] {
    const Worker worker(options_of(0, &coordinator));
    has_joined.tell();
    test::sleep_forever();
    return 0;
  });
  REQUIRE(has_joined.hear());
  dying.kill();
  const ManualClock clock(ManualClock::Sleeps::kPass);
  WorkerOptions given = options_of(1, &coordinator);
  given.stop_requested = [&] { return clock.passed_ns() > 20 * kSecond; };  // instead of waiting for ever
  Worker second(given);
  CHECK_THROWS_WITH_AS(second.step(), doctest::Contains("the replay cannot go on: worker 0 has died"), Error);
}

}  // namespace
